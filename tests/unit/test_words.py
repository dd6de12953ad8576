"""Habits of naming and documenting, counted over the package and the figures, and held to what well-kept projects have.

Limits are shares that the same count finds in ReFrame, Snakemake and submitit, or less (docs/decisions/59-words-are-counted.md).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

_VERBS = """
    abbreviate abort accept acquire adapt add adjust adopt advance agree agrees allow allows analyze annotate
    announce announces anonymize answer append applies apply are arrange assign attach average await become begin
    begins belongs bind bootstrap borrow borrows bucket build call can cancel cast chain change check choose chunk
    classify clean clear clip close collect combine commit compare compile complete compose compute confirm
    connect contradicts convert copy count covers create cut date decide decode decompose decorate defer delete
    derive describe detach detect determine die differs discard disconnect distinguish divide do document double
    draw drop dump echo edit emulate enable encode end ensure enter escape estimate evaluate exclude excludes
    execute exit expand expects expire explain extend extract fence fetch fill filter find finish fit fits fix
    flatten follow forget forgive fork format fulfils generate get give group guess handle has hash have hold
    holds identify import infer initialise initialize inline insert interpolate interrupt invalidate invoke is
    isolate iterate join judge keep kill label lacks launch lay leave lengthen lift limit link list load locate
    lock log make map mark mask match matches materialise may measure meets mentions merge migrate move name needs
    neutralize normalize note number observe obtain open order overwrite pace pack paint pair parse pick place
    plan pluralize poll pool pop predict prepare prepend preview price print probe protect provide publish query
    quote raise rank read readmit reads reap rebuild receive recommend reconcile record redact redo reduce refresh
    refuse register rehearse reject relate release remember remove rename render renumber repeat replace report
    reports reprogram request require requires rescale rescan reserve reset resolve respond restore restrict
    resume return reuse roll round run sample save scale scatter schedule score search select send serve set
    settle shard share shift shorten show shut signal simulate skip sleep solve sort specify spell split start
    stop store strip submit subtract suggest sum summarise summarize survey switch sync synchronize tabulate take
    tell test time tolerate tracks translate trim try undrain unload unpack unreserve unshare unwatch update
    upsample use uses validate verify wait walk warm warn was watch widen withdraw withhold wrap write
"""
VERBS = frozenset(_VERBS.split())
"""First words of functions: verbs in the imperative, or in the third person for predicates."""
_IRREGULAR_PARTICIPLES = """
    begun bound broken brought built caught chosen done drawn driven fallen forgotten found given gone heard held
    hidden kept known laid led left lent lost made meant met paid said seen sent shown sold spent taken taught
    thought told understood woken won worn written
"""
IRREGULAR_PARTICIPLES = frozenset(_IRREGULAR_PARTICIPLES.split())
NOUNS_IN_ED = {"embed", "exceed", "feed", "need", "seed", "shed", "speed"}
_PREPOSITIONS = """
    About After Among As At Because Before Beside Between By During For From If In None Of On Per That Than To Under Until Upon With
    Without
"""
_RELATIVE_WORDS = "How What Whatever When Where Whether Which Who Whom Whose Why"
OPENING = re.compile(rf"({'|'.join([*_PREPOSITIONS.split(), *_RELATIVE_WORDS.split()])})\b")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Located = tuple[Path, int, str]


@cache
def nodes() -> list[tuple[Path, ast.AST]]:
    files = [path for top in ("workflow", "scripts") for path in (ROOT / top).rglob("*.py")]
    return [(path, node) for path in files for node in ast.walk(ast.parse(path.read_text()))]


@cache
def definitions() -> list[tuple[Path, Function | ast.ClassDef]]:
    return [(path, node) for path, node in nodes() if isinstance(node, Function | ast.ClassDef)]


@cache
def functions() -> list[tuple[Path, Function]]:
    """Functions and methods that are called: no properties, validators or methods of Python's own protocols."""
    return [
        (path, node)
        for path, node in definitions()
        if isinstance(node, Function)
        and not node.name.startswith("__")
        and not any(re.search("property|validator", ast.unparse(decorator)) for decorator in node.decorator_list)
    ]


@cache
def docstrings() -> list[Located]:
    return [(path, node.lineno, text) for path, node in definitions() if (text := ast.get_docstring(node))]


@cache
def names() -> list[Located]:
    """Names of functions, classes, parameters and variables."""
    return [
        *((path, node.lineno, node.name) for path, node in definitions()),
        *((path, node.lineno, node.arg) for path, node in nodes() if isinstance(node, ast.arg)),
        *(
            (path, node.lineno, node.id)
            for path, node in nodes()
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ),
    ]


def is_participle(name: str) -> bool:
    """Return whether the whole name is one participle. Classes of several words (`StorageFeed`) are none."""
    word = name.strip("_")
    if not word[1:].islower() or "_" in word:
        return False
    word = word.lower()
    return word in IRREGULAR_PARTICIPLES or (word.endswith("ed") and len(word) > 3 and word not in NOUNS_IN_ED)


def first_word(name: str) -> str:
    return name.strip("_").split("_")[0].lower()


def hold_share(examples: list[Located], whole: int, limit: float) -> None:
    """Fail with the examples if they are more than this share of the whole."""
    lines = [f"{path.relative_to(ROOT)}:{line}: {text[:80]}" for path, line, text in examples]
    assert len(lines) <= limit * whole, f"{len(lines)} of {whole} ({len(lines) / whole:.2%}):\n" + "\n".join(lines)


def test_functions_begin_with_a_verb() -> None:
    verbless = [(path, f.lineno, f.name) for path, f in functions() if first_word(f.name) not in VERBS]
    hold_share(verbless, len(functions()), 0.15)


def test_a_function_of_one_word_is_a_verb() -> None:
    riddles = [
        (path, f.lineno, f.name)
        for path, f in functions()
        if "_" not in f.name.strip("_") and first_word(f.name) not in VERBS
    ]
    hold_share(riddles, len(functions()), 0.025)


def test_names_are_no_participles() -> None:
    hold_share([name for name in names() if is_participle(name[2])], len(names()), 0.005)


def test_names_hold_no_of() -> None:
    fragments = [name for name in names() if re.search(r"^_?of(_|$)|_of$", name[2].lower())]
    hold_share(fragments, len(names()), 0.001)


def test_limits_are_called_minimum_and_maximum() -> None:
    assert [name for name in names() if re.search(r"(LEAST|MOST|ENOUGH)(_|$)", name[2])] == []


def test_docstrings_open_with_a_verb_or_a_noun() -> None:
    hold_share([docstring for docstring in docstrings() if OPENING.match(docstring[2])], len(docstrings()), 0.005)


def test_docstrings_hold_few_free_what_clauses() -> None:
    clauses = [docstring for docstring in docstrings() if re.search(r"\bwhat\b", docstring[2], re.I)]
    hold_share(clauses, len(docstrings()), 0.025)


NEUTRAL_TYPES = re.compile(
    r"Any|object|str|int|float|bool|bytes|Scalar|Json|pd\.\w+(\[\w+\])?|npt\..*|Floats|Integers|Codes|re\.Match\[\w+\]|BaseModel"
)
"""Identities, counts, tables and arrays of a thing, and documents that describe it."""


def element_types(annotation: ast.expr) -> set[str]:
    """Types that a parameter is of: `hosts: Sequence[Host]` and `Mapping[str, Host] | None` are both about a `Host`."""
    if isinstance(annotation, ast.BinOp):
        return element_types(annotation.left) | element_types(annotation.right)
    if isinstance(annotation, ast.Subscript) and not isinstance(annotation.value, ast.Attribute):
        if ast.unparse(annotation.value) in {"Callable", "Literal", "type"}:
            return {ast.unparse(annotation)}
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        return set().union(*map(element_types, inner))
    name = ast.unparse(annotation)
    return set() if name in {"None", "..."} or NEUTRAL_TYPES.fullmatch(name) else {name.split(".")[-1]}


def test_a_parameter_name_has_one_meaning() -> None:
    """One name with five types or more is one word for five things.

    `host: ComposedHost` repeats its type, and counts as the same thing as `host: Host`. Words of programming in general
    (`value`, `error`, `entry`) are let through.
    """
    general = {
        "self",
        "cls",
        "value",
        "values",
        "name",
        "names",
        "text",
        "path",
        "directory",
        "document",
        "error",
        "entry",
        "options",
        "context",
    }
    types: defaultdict[str, set[str]] = defaultdict(set)
    for _, function in functions():
        for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
            if argument.annotation is not None:
                noun = argument.arg.rstrip("s").replace("_", "")
                types[argument.arg] |= {
                    noun if noun in kind.lower() else kind for kind in element_types(argument.annotation)
                }
    many = {name: kinds for name, kinds in types.items() if len(kinds) >= 5 and name not in general}
    assert len(many) <= 0.005 * len(types), many
