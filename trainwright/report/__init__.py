"""One look for every report: pages, charts drawn as inline SVG, and Markdown summaries."""
