"""Is the server alive, is it ready, which models does it serve, and what do they take?

python examples/clients/health_check.py [--url localhost:8001] [--model NAME]

Exits with 1 unless the server and every model of its index (or the one named) are ready, so that it serves as a probe.
Models that nobody asked the server to load, or that were unloaded, are passed over.
"""

from __future__ import annotations

import argparse
import sys

import tritonclient.grpc as triton


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="localhost:8001")
    parser.add_argument("--model", help="look at this model only")
    arguments = parser.parse_args()

    with triton.InferenceServerClient(arguments.url) as client:
        try:
            live, ready = client.is_server_live(), client.is_server_ready()
            server = client.get_server_metadata()
            if arguments.model:
                names = [arguments.model]
            else:
                models = client.get_model_repository_index().models
                names = sorted({model.name for model in models if model.state and model.reason != "unloaded"})
            print(
                f"{server.name} {server.version}: {'live' if live else 'not live'}, {'ready' if ready else 'not ready'}"
            )
            all_ready = live and ready
            for name in names:
                if not client.is_model_ready(name):
                    print(f"  {name}: not ready")
                    all_ready = False
                    continue
                metadata = client.get_model_metadata(name)
                inputs, outputs = (
                    ", ".join(f"{tensor.name} {tensor.datatype}{list(tensor.shape)}" for tensor in tensors)
                    for tensors in (metadata.inputs, metadata.outputs)
                )
                print(f"  {name} (versions {', '.join(metadata.versions)}): {inputs} -> {outputs}")
        except triton.InferenceServerException as error:
            print(f"{arguments.url}: {error}", file=sys.stderr)
            return 1
    return 0 if all_ready else 1


if __name__ == "__main__":
    sys.exit(main())
