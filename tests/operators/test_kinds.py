"""Every kind of operator appears wherever kinds are listed."""

import inspect

import msgspec
import pytest

from medusa_sim.operators.columns import KINDS as NAMES
from medusa_sim.operators.kinds import KIND_OF, KINDS
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.inheritance import BORROWED, InheritFile
from medusa_sim.specs.kernels import SECTIONS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.section)
def test_a_record_names_functions_columns_and_a_section_that_are_there(kind):
    wanted = ("cold", "form") if kind.is_chosen else ("model", "operator")
    told = inspect.signature(kind.timer).parameters
    assert set(wanted) <= set(told) or any(each.kind is each.VAR_KEYWORD for each in told.values())
    for architecture in ("hopper", "cpu"):
        assert "source" in inspect.signature(kind.fitter(architecture)).parameters
    assert {name for columns in kind.groups for name in columns} <= set(kind.operator.COLUMNS)
    assert list(kind.ranges) == sorted(set(kind.ranges))
    assert kind.title
    assert kind.section in SECTIONS
    assert kind.section in BORROWED


def test_sections_kinds_and_names_name_each_other_once():
    assert {section for kind in KINDS for section in (kind.section, kind.serial) if section} == set(SECTIONS)
    assert set(BORROWED) == set(InheritFile.__struct_fields__) - {"reason", "widen", "slower"}
    assert len({kind.title for kind in KINDS}) == len(KINDS)
    names = [name for kind in KINDS for name in kind.names]
    assert len(names) == len(set(names))
    assert set(names) == set(KIND_OF)
    assert set(names) - {"gemm"} <= set(NAMES)  # a linear layer may have any name
    held = load_gpu("h100-sxm").kernel_set("sglang")
    for kind in KINDS:
        assert all(isinstance(kernel, msgspec.Struct) and kernel.fit for kernel in kind.table(held).values())
