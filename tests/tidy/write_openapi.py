"""Writes docs/reference/openapi.json anew; run it when a route or a body changes."""

import json

from capyctl.wire.openapi import openapi_document
from tests.tidy.test_docs_openapi import COMMITTED

if __name__ == "__main__":
    text = json.dumps(openapi_document(), indent=2, sort_keys=True, ensure_ascii=False)
    COMMITTED.write_text(text + "\n")
