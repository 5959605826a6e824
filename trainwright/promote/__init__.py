"""The step that moves a registered version from stage to stage, one at a time, with the reasons kept."""
