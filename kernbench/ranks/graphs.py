"""Algorithms on graphs of waits: strongly connected components, and shortest cycles."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def components(edges: Mapping[T, Sequence[T]]) -> list[set[T]]:
    """Returns the strongly connected components, as Tarjan finds them, without recursion.

    Args:
        edges: Nodes to which the edges of a node lead, by node; every node has an entry.
    """
    index: dict[T, int] = {}
    low: dict[T, int] = {}
    open_nodes: dict[T, None] = {}
    found = []
    for root in edges:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        open_nodes[root] = None
        work = [(root, iter(edges[root]))]
        while work:
            node, children = work[-1]
            for child in children:
                if child not in index:
                    index[child] = low[child] = len(index)
                    open_nodes[child] = None
                    work.append((child, iter(edges[child])))
                    break
                if child in open_nodes:
                    low[node] = min(low[node], index[child])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = set()
                    while node not in component:
                        component.add(open_nodes.popitem()[0])
                    found.append(component)
    return found


def around(start: T, children: Callable[[T], Sequence[T]]) -> tuple[list[T], int]:
    """Returns a shortest cycle through a node, and the number of edges that were walked.

    Args:
        start: A node that lies on a cycle.
        children: Returns the nodes to which the edges of a node lead.
    """
    before: dict[T, T] = {}
    layer, steps = [start], 0
    while layer and start not in before:
        following = []
        for node in layer:
            for child in children(node):
                steps += 1
                if child not in before:
                    before[child] = node
                    following.append(child)
        layer = following
    way, node = [start], before[start]
    while node != start:
        way.append(node)
        node = before[node]
    way[1:] = way[:0:-1]
    return way, steps
