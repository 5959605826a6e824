"""Beam's pool of workers, at an address of its own: ``python -m tests.engines.worker_pool HOST:PORT``.

Beam's program takes every address of the machine. Task managers number their workers alike, so that two that
share a pool stop each other's.
"""

import sys

import grpc
from apache_beam.portability.api import beam_fn_api_pb2_grpc
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer
from apache_beam.utils import thread_pool_executor

server = grpc.server(thread_pool_executor.shared_unbounded_instance())
pool = BeamFnExternalWorkerPoolServicer(use_process=True, data_buffer_time_limit_ms=-1)
beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
server.add_insecure_port(sys.argv[1])
server.start()
server.wait_for_termination()
