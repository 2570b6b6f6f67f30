"""One of three keys says how large the KV cache is: which, when several are given."""

from servekit.config.origins import Layered, Origin, select
from servekit.config.problems import Problem, with_value

KV_SIZES = ("memory_gib", "capacity_tokens", "memory_fraction")


def choose_kv_size(layered: Layered) -> list[Problem]:
    """Keeps the one size of the KV cache that the highest layer gives; the others become null.

    Two in one layer contradict each other. None at all is left to the schema.
    """
    given = {
        f"kv.{name}": layered.origins[f"kv.{name}"]
        for name in KV_SIZES
        if select(layered.tree, ("kv", name)) is not None and f"kv.{name}" in layered.origins
    }
    if len(given) < 2:
        return []
    highest = max(origin.rank for origin in given.values())
    winners = [key for key, origin in given.items() if origin.rank == highest]
    if len(winners) > 1:
        places = tuple(with_value(key, given[key].value, given[key]) for key in winners)
        message = f"{' and '.join(winners)} both say how large the cache is; give one of them"
        from_word = any(given[key].kind == "word" for key in winners)
        return [Problem("rule", "kv", message, places, from_word)]
    winner = winners[0]
    sentence = f"replaced by {winner} from {given[winner].where}"
    for key in given:
        if key != winner:
            layered.merge(
                tuple(key.split(".")), None, Origin("derived", sentence, None, rank=highest)
            )
    return []
