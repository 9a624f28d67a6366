"""Reports of arguments that are refused."""

from kernbench.errors import OptionError, call_site, site_fact


def bad_argument(text: str, *facts: str, hint: str = "") -> OptionError:
    """Returns the error of a refused argument, with the user's line.

    Args:
        text: One sentence: what is refused.
        *facts: Further lines of the report.
        hint: What to try.
    """
    return OptionError(text, [site_fact(call_site()), *facts], hint=hint)


def bad_option(text: str, *facts: str, hint: str = "") -> OptionError:
    """Returns the same for an argument of `cp_attention`.

    Args:
        text: One sentence: what is refused.
        *facts: Further lines of the report.
        hint: What to try.
    """
    return bad_argument(f"cp_attention: {text}", *facts, hint=hint)
