"""Classes of TensorFold's command-line options."""

from __future__ import annotations

from capyctl.engines.options import OptionTable

# Names without the `no-` of a switch, as they are compared.
_RESERVED = """
host port name alias backend tp rank master master-port snapshot-dir update-check api-key
api-key-file metrics-open enable-sleep-mode sleep-token-env sleep-timeout sleep-cache-dir config
help version model
"""

TENSORFOLD_OPTIONS = OptionTable(
    family="tensorfold",
    typed={
        "context": "context_length",
        "kv-dtype": "kv_cache_dtype",
        "max-tokens": "tensorfold.max_tokens",
        "thinking": "tensorfold.thinking",
    },
    either={"parallel": "max_concurrent_requests"},
    reserved=frozenset(_RESERVED.split()),
    approval=frozenset({"vision-urls", "lane-kernels"}),
    approval_paths=frozenset({"drafter"}),
    abbreviates=True,
    inline_values=True,
    always_rendered=frozenset({"context"}),
)
