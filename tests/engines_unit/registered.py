"""Registration as the command does it, with capyctl's own documents."""

from __future__ import annotations

from capyctl.config.engine_documents import YamlEngineDocuments
from capyctl.engines import engines_file, registration

DOCUMENTS = YamlEngineDocuments()


def add_engine(path, document, **options):
    return registration.add_engine(
        path,
        engines_file=document,
        documents=DOCUMENTS,
        system_config=document.with_name("none"),
        **options,
    )


def list_engines(document):
    return registration.list_engines(document, DOCUMENTS)


def remove_engine(name, document):
    return registration.remove_engine(name, engines_file=document, documents=DOCUMENTS)


def read_engines_file(document):
    return engines_file.read_engines_file(document, DOCUMENTS)


def edit_engines_file(document, change):
    return engines_file.edit_engines_file(document, change, DOCUMENTS)
