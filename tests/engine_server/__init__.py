"""A simulated serving engine: continuous batching, OpenAI's streams, vLLM's metrics, known T_round and acceptance.

with running(Engine(EngineSettings(gamma=2))) as base_url: ...          a real port, on a thread
simulate(block(...)), with OpenAIClient(..., transport=EngineTransport(engine))    simulated time, no socket
python -m tests.engine_server --port 8000 --gamma 2 --settings '{"alpha": 0.7}'    a process
"""
