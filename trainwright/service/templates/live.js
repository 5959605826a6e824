// Fetch the page of a running run again, and replace the part that changes. The page works without it.
const refresh = async () => {
  const answer = await fetch(location.href).catch(() => null);
  const text = answer?.ok ? await answer.text() : "";
  const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("live");
  const old = document.getElementById("live");
  if (fresh) {
    for (const step of fresh.querySelectorAll("details")) {
      const before = document.getElementById(step.id);
      if (before?.dataset.state === step.dataset.state) step.open = before.open;
    }
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const alike = [...old.querySelectorAll("a, summary, [tabindex]")].indexOf(focused);
    old.replaceWith(fresh);
    if (focused) [...fresh.querySelectorAll("a, summary, [tabindex]")][alike]?.focus({ preventScroll: true });
    if (!("live" in fresh.dataset)) return location.reload();
  }
  setTimeout(refresh, 2000);
};
setTimeout(refresh, 2000);
