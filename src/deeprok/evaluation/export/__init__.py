"""Policies for use elsewhere.

| file | what it is |
|---|---|
| `policy` | what is exported, and what a format is |
| `as_json` | a small JSON, and its reader in numpy |
| `as_onnx` | ONNX |
| `as_c` | a C header, and what it computes in numpy |
| `write` | the formats by name, and the check against the agent |
"""

from deeprok.evaluation.export.as_json import json_q_values, read_policy
from deeprok.evaluation.export.write import FORMATS, export, export_policy

__all__ = ["FORMATS", "export", "export_policy", "json_q_values", "read_policy"]
