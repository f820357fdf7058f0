"""Pure: what the text of one cell means as a number, as a date, or as nothing."""

import re
from datetime import date

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "?", "-"})
"""Texts that stand for no value, in lower case."""
LARGEST = 1e100
"""Numbers beyond this are no measurements; squares of those below it still fit a double."""
_EPOCH = date(1970, 1, 1).toordinal()
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+")
_CLOCK = r"(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?\s*([AaPp][Mm])?)?\s*(?:Z|UTC|[+-]\d{2}:?\d{2})?"
_YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})" + _CLOCK, re.ASCII)
_YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})" + _CLOCK, re.ASCII)


def is_missing(text: str) -> bool:
    """Whether a cell holds nothing."""
    return text.strip().lower() in MISSING


def parse_number(text: str, decimal_comma: bool = False) -> float | None:
    """The finite number that `text` is, or None.

    1,234.5 is read with thousands separators; with `decimal_comma`, 1.234,5 is.
    """
    try:
        value = float(text)
    except ValueError:
        return _grouped(text.strip(), decimal_comma)
    # The comparison is false for nan too. float() takes 1_000, which no CSV writer means as a number.
    return value if abs(value) <= LARGEST and "_" not in text else None


def _grouped(text: str, decimal_comma: bool) -> float | None:
    """A number that float() doesn't read, because of its commas."""
    if decimal_comma and _DECIMAL_COMMA.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    elif not decimal_comma and _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    else:
        return None
    value = float(text)
    return value if abs(value) <= LARGEST else None


def parse_date(text: str, day_first: bool = False) -> float | None:
    """Seconds since 1970 of a date or date with time, on the clock it was written for, or None."""
    text = text.strip()
    match = _YEAR_FIRST.fullmatch(text)
    if match:
        year, _, month, day, *clock = match.groups()
    else:
        match = _YEAR_LAST.fullmatch(text)
        if not match:
            return None
        first, _, second, year, *clock = match.groups()
        month, day = (second, first) if day_first else (first, second)
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH
    except ValueError:
        return None
    seconds = _seconds(*clock)
    return None if seconds is None else days * 86400.0 + seconds


def _seconds(hour: str | None, minute: str | None, second: str | None, half: str | None) -> float | None:
    """Seconds since midnight of a time of day, or None when it is none."""
    h, m, s = int(hour or 0), int(minute or 0), int(second or 0)
    if half:
        h = h % 12 + (12 if half.lower() == "pm" else 0)
    return h * 3600.0 + m * 60 + s if h < 24 and m < 60 and s <= 60 else None


def is_day_first(texts: list[str]) -> bool | None:
    """Whether dates such as 03/04/2013 start with the day: known when some number is over 12 or dots separate.

    None when nothing decides it; a caller then reads the month first and says so.
    """
    for text in texts:
        match = _YEAR_LAST.fullmatch(text.strip())
        if not match:
            continue
        if match[2] == "." or int(match[1]) > 12:
            return True
        if int(match[3]) > 12:
            return False
    return None


def has_year_last(texts: list[str]) -> bool:
    """Whether any text is a date written with its year last."""
    return any(_YEAR_LAST.fullmatch(text.strip()) for text in texts)


def date_parts(seconds: float) -> tuple[float, ...]:
    """Of seconds since 1970: year, month, day, weekday (Monday is 0), day of year, hour with its fraction."""
    days, rest = divmod(seconds, 86400)
    day = date.fromordinal(int(days) + _EPOCH)
    return (day.year, day.month, day.day, day.weekday(), day.timetuple().tm_yday, rest / 3600)


DATE_PARTS = ("year", "month", "day", "weekday", "day of year", "hour")
"""Names of what date_parts gives."""
