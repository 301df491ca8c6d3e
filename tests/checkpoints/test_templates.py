"""Chat templates: which of their words decide, and where they are found."""

import json

import pytest

from capyctl.checkpoints.digest import LocalCheckpoints
from capyctl.checkpoints.templates import marks_of, template_in
from capyctl.domain.checkpoints import TemplateMarks, ToolStyle
from capyctl.simulated.checkpoint_writer import write_checkpoint

JSON_TEMPLATE = (
    "For each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, '
    '\\"arguments\\": <args-json-object>}\\n</tool_call>'
)
FUNCTION_TEMPLATE = "<tool_call>\\n<function=example>\\n<parameter=x>\\n</tool_call>"


@pytest.mark.parametrize(
    ("template", "tools", "thinks"),
    [
        (JSON_TEMPLATE, ToolStyle.JSON, False),
        ('{{- \'<tool_call>\\n{"name": "\' }}', ToolStyle.JSON, False),
        (FUNCTION_TEMPLATE, ToolStyle.FUNCTION, False),
        (JSON_TEMPLATE + FUNCTION_TEMPLATE + "<think>", ToolStyle.FUNCTION, True),
        ("<tool_call> of another kind", None, False),
        ("{{ messages }}<think>", None, True),
        ("", None, False),
    ],
)
def test_what_a_template_says(template, tools, thinks):
    assert marks_of(template) == TemplateMarks(tools=tools, thinks=thinks)


@pytest.mark.parametrize(
    ("config", "template"),
    [
        ({"chat_template": "x"}, "x"),
        ({"chat_template": [{"name": "rag", "template": "y"}]}, "y"),
        (
            {
                "chat_template": [
                    {"name": "rag", "template": "y"},
                    {"name": "default", "template": "z"},
                ]
            },
            "z",
        ),
        ({"chat_template": [1, None]}, None),
        ({"chat_template": 7}, None),
        ({}, None),
    ],
)
def test_a_configuration_holds_one_template_or_several(config, template):
    assert template_in("tokenizer_config.json", "", config) == template


async def measured(folder):
    return await LocalCheckpoints().measure(str(folder))


async def test_the_template_beside_the_configuration_is_believed_first(tmp_path):
    folder = write_checkpoint(tmp_path / "m", weights_bytes=10_000)
    assert (await measured(folder)).template == TemplateMarks()

    (folder / "chat_template.jinja").write_text(FUNCTION_TEMPLATE)
    assert (await measured(folder)).template.tools is ToolStyle.FUNCTION


async def test_a_model_without_a_template_has_none(tmp_path):
    folder = write_checkpoint(tmp_path / "m", weights_bytes=10_000)
    (folder / "tokenizer_config.json").write_text("{}")
    assert (await measured(folder)).template is None
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "<think>"}))
    assert (await measured(folder)).template == TemplateMarks(thinks=True)


async def test_what_is_no_json_is_passed_over(tmp_path):
    folder = write_checkpoint(tmp_path / "m", weights_bytes=10_000)
    (folder / "tokenizer_config.json").write_text("{")
    assert (await measured(folder)).template is None
