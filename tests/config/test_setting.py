"""The declaration of a setting."""

from dataclasses import dataclass, fields

from oncehook.config.setting import setting
from oncehook.model.values import whole_number


def test_field_has_its_default_parser_and_description() -> None:
    @dataclass
    class Table:
        number: int = setting(3, whole_number, "A number.")

    (field,) = fields(Table)
    assert (field.default, field.metadata["parse"]("4"), field.metadata["help"]) == (3, 4, "A number.")
