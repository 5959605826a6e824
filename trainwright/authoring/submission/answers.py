"""What the API answers is read as strictly as the description has it.

A gateway may answer in the place of the API: a page to log in with status 200, an empty 404 while it is
changed, half of a body. The generated client takes such a text for an empty object, and an empty list for
"there is none": what is not there would be made a second time.
"""

import json
from typing import Any

import kfp_server_api


class Unreadable(Exception):
    """An answer with a good status that the API cannot have given."""


class Client(kfp_server_api.ApiClient):  # type: ignore[misc]
    """The generated client, which takes no answer but an object of the description."""

    def deserialize(self, response: Any, response_type: Any) -> Any:
        """Read an answer.

        Raises:
            Unreadable: It is no JSON object, or a field in it is not what the description says.
        """
        data = document(response.data)
        known = getattr(getattr(kfp_server_api.models, response_type, None), "attribute_map", {}).values()
        if not isinstance(data, dict) or (known and data and data.keys().isdisjoint(known)):
            raise Unreadable("what answers is not the API: it sends none of what was asked for")
        try:
            return super().deserialize(response, response_type)
        except (ValueError, TypeError, AttributeError, kfp_server_api.ApiException) as error:
            raise Unreadable(f"the answer cannot be read: {type(error).__name__}") from None


def document(body: Any) -> Any:
    """Return what a body of JSON holds; None for any other."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body
    try:
        return json.loads(text or "")
    except ValueError:
        return None
