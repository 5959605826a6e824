# What a person runs, and what CI runs. Needs Python 3.11 and make, nothing else: the rest sets itself up.

PYTHON ?= python3.11
BIN := .venv/bin
UV := $(BIN)/python -P trainwright/authoring/installer.py uv  # with the settings of pip
ARGS ?=
NAME ?= *
ENGINE ?= docker
FLIGHTS := examples/flights
PACKAGE := $(FLIGHTS)/data/.package/.made
EMULATORS := .environments/emulators/.made
ENGINES := .environments/engines/.made
FLINK := .environments/flink/.made
BEAM := .environments/tabular-engines/.made
SCORE := .environments/torch-engines/.made
DOCS := .environments/docs/.made
AUDIT := .environments/audit/.made
LOCKS := $(wildcard images/*.lock images/*/requirements*.lock)

.PHONY: cli setup help demo data test test-kubeflow engines test-engines check docs lint types format compile compile-check interface-check release lock lock-check audit sbom environments images bench clean
.DEFAULT_GOAL := cli

cli: .venv/.made  ## put the command line into .venv: all that submitting needs (plain `make`)
	@echo "  $(BIN)/trainwright is ready; make setup prepares runs on this machine, make help lists more"

setup: environments  ## put the command line into .venv, and the environment of every step into .environments

help:  ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 18

demo: data  ## run the whole pipeline on the flights, here, without a cluster
	$(BIN)/trainwright run train_and_register --config $(FLIGHTS)/flights.yaml $(ARGS)

data: environments $(PACKAGE)  ## prepare the flights: their rows, their feature tables, the Feast repository
	@.environments/feast/bin/python $(FLIGHTS)/prepare.py

test: data .venv/.tools $(EMULATORS)  ## run every test in its environment (ARGS="tests/join -k leak")
	@$(BIN)/python tests/run.py $(ARGS)

test-kubeflow: .venv/.tools  ## check a Kubeflow of yours (HOST=https://HOST/pipeline REGISTRY=HOST/TEAM ARGS="…")
	.venv/bin/python -m pytest tests/kubeflow/test_acceptance.py tests/kubeflow/test_main_pipeline.py -s -v --kubeflow-host "$(HOST)" --kubeflow-registry "$(REGISTRY)" $(ARGS)

engines: environments $(ENGINES) $(FLINK) $(BEAM) $(SCORE)  ## make the environments of the tests on Spark, Ray and Flink; needs Maven and Java 17

test-engines: engines .venv/.tools $(EMULATORS)  ## run data steps on clusters of Spark, Ray and Flink
	@$(BIN)/python tests/run.py tests/ingest/test_flink.py tests/validate/test_flink.py tests/evaluate/test_engines.py tests/score/test_engines.py tests/join/test_answers.py tests/engines

check: lint types compile-check interface-check lock-check docs test  ## all that CI runs

lint: .venv/.tools  ## style, security, and which package may import which
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/bandit -q -ll -c pyproject.toml -r trainwright components pipelines && $(BIN)/lint-imports --no-cache --no-logo

types: environments .venv/.tools  ## mypy strict, each package under its environment
	@$(BIN)/python tests/typed.py

format: .venv/.tools  ## format the code
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

compile: .venv/.made  ## write compiled/ from components/ and pipelines/
	$(BIN)/trainwright compile
	$(BIN)/python tests/reliability.py

compile-check: .venv/.made  ## compiled/ is what compiling gives, byte for byte
	$(BIN)/trainwright compile --check

interface-check: .venv/.made  ## the version has risen by what its changes since the last release ask for
	$(BIN)/trainwright interface-diff

release: compile-check interface-check  ## keep the interface of this version, which the next one is held to
	@version=$$($(BIN)/python -c 'import trainwright; print(trainwright.__version__)') && kept=compiled/released/$$version.json && \
		{ test ! -e $$kept || { echo "$$version is out already: raise trainwright.__version__" >&2; exit 1; }; } && \
		mkdir -p compiled/released && cp compiled/index.json $$kept && echo "  $$kept"

lock: .venv/.made  ## resolve every lock again (ARGS=--upgrade takes newer versions)
	$(BIN)/python images/lock.py $(ARGS)

lock-check: .venv/.made  ## every lock belongs to its requirements; needs no network
	$(BIN)/python images/lock.py --check

audit: $(AUDIT)  ## look up known vulnerabilities of what the locks pin; asks PyPI (ARGS="--vulnerability-service osv")
	@failed=0; for lock in $(LOCKS); do echo "  $$lock"; $(<D)/bin/pip-audit --strict --disable-pip --require-hashes \
		--progress-spinner off $(ARGS) --requirement "$$lock" || failed=1; done; exit $$failed

sbom: $(AUDIT)  ## list what each lock pins in build/sbom, in CycloneDX; needs no network
	@mkdir -p build/sbom; for lock in $(LOCKS); do name=$$(echo "$${lock%.lock}" | tr / -); $(<D)/bin/cyclonedx-py \
		requirements --output-reproducible --output-format JSON --output-file "build/sbom/$$name.cdx.json" "$$lock" || exit 1; done

environments: .venv/.made  ## make the environments of the toolchains, where a lock changed
	@$(BIN)/trainwright setup

images: .venv/.made  ## build the images (NAME=tabular ENGINE=podman BASE= TORCH_BASE= VARIANT=gpu|engines PUSH=HOST/TEAM; docs/images.md)
	@$(BIN)/python images/build.py $(filter-out *,$(NAME)) --engine $(ENGINE) $(if $(BASE),--base $(BASE)) \
		$(if $(TORCH_BASE),--torch-base $(TORCH_BASE)) $(if $(VARIANT),--variant $(VARIANT)) $(if $(PUSH),--push $(PUSH)) -- $(ARGS)

docs: $(DOCS)  ## build the site of the documentation into build/site: offline, and strict
	@$(<D)/bin/python docs/site/build.py

bench: environments .venv/.tools $(EMULATORS)  ## run the benchmarks, or one (NAME=images)
	@failed=0; for file in benchmarks/$(NAME).py; do $(BIN)/python $$file $(ARGS) || failed=1; done; exit $$failed

clean:  ## remove what was made here: environments, runs, caches
	rm -rf .venv .environments runs build dist $(FLIGHTS)/data $(FLIGHTS)/feature_repo/offline .*_cache .hypothesis

$(PACKAGE): $(FLIGHTS)/requirements.lock images/build.lock | environments
	@$(UV) pip install --quiet --python .environments/feast/bin/python --require-hashes --no-deps --build-constraints images/build.lock --target $(@D) --requirements $<
	@touch $@

# The object stores that tests and benchmarks talk to.
$(EMULATORS): tests/storage/requirements.lock | .venv/.made
	@$(UV) venv --quiet --clear --python $(BIN)/python $(@D)
	@$(UV) pip install --quiet --python $(@D)/bin/python --require-hashes --no-deps --requirements $<
	@touch $@

# Feast with Spark and Ray, which its tests start.
$(ENGINES): images/feast/requirements-engines.lock images/kfp.lock | .venv/.made
	@rm -rf $(@D) && $(BIN)/python -P trainwright/authoring/installer.py environment feast $(@D) --variant engines
	@touch $@

# What `evaluate` needs on Beam.
$(BEAM): images/tabular/requirements-engines.lock images/kfp.lock | .venv/.made
	@rm -rf $(@D) && $(BIN)/python -P trainwright/authoring/installer.py environment tabular $(@D) --variant engines
	@touch $@

# What `score` needs on Beam, over a copy of the environment that has the torch of this machine.
$(SCORE): images/torch/requirements-engines.lock images/build.lock | environments
	@rm -rf $(@D) && cp -a --link .environments/torch $(@D)
	@$(UV) pip install --quiet --python $(@D)/bin/python --require-hashes --no-deps --build-constraints images/build.lock --requirements $<
	@touch $@

# Flink and Beam's job server for it, each jar by its hash.
$(FLINK): tests/engines/flink/pom.xml tests/engines/flink/jars.sha256
	@mvn --batch-mode --quiet --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(@D)
	@cd $(@D) && sha256sum --quiet --check $(CURDIR)/$(word 2,$^)
	@touch $@

# What builds the site: it imports the library as an author has it.
$(DOCS): docs/site/requirements.lock images/authoring/requirements.lock | .venv/.made
	@$(UV) venv --quiet --clear --python $(BIN)/python $(@D)
	@$(UV) pip install --quiet --python $(@D)/bin/python --require-hashes --no-deps $(addprefix --requirements ,$^)
	@touch $@

$(AUDIT): images/audit.lock | .venv/.made
	@$(UV) venv --quiet --clear --python $(BIN)/python $(@D)
	@$(UV) pip install --quiet --python $(@D)/bin/python --require-hashes --no-deps --requirements $<
	@touch $@

# The command line, and on top of it what tests and checks need. uv itself comes first, by its hash in the lock.
.venv/.made: images/authoring/requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || \
		{ echo "$(PYTHON) is no Python 3.11, which is needed; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "  .venv        the command line"
	@$(PYTHON) -m venv --clear .venv
	@sed -n '/^uv==/,/[^\\]$$/p' $< > .venv/uv.lock
	@$(BIN)/python -m pip install -qq --require-hashes --no-deps --requirement .venv/uv.lock
	@$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes --no-deps --requirements $<
	@echo '$(CURDIR)' > .venv/lib/python3.11/site-packages/trainwright.pth
	@printf '#!%s\nimport sys\n\nfrom trainwright.cli.app import main\n\nsys.exit(main())\n' '$(CURDIR)/$(BIN)/python' > $(BIN)/trainwright
	@chmod +x $(BIN)/trainwright && touch $@

.venv/.tools: .venv/.made tests/requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes --no-deps --requirements tests/requirements.lock
	@touch $@
