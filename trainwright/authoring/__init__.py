"""What an author of pipelines needs and a pod does not: images, catalog, compiler, runs, command line."""
