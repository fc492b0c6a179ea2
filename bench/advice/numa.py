"""Bound to the memory node that the disk hangs on."""

from __future__ import annotations

from bench.advice.contract import Advice, Seen


def find(seen: Seen) -> Advice | None:
    """Several nodes, and the host line says on which one a storage that was read cold is. The run
    measured no binding: the command that does stands beside."""
    nodes = (seen.host.get("cpu") or {}).get("numa_nodes") or []
    for label in seen.labels:
        node = (seen.storage(label).get("block") or {}).get("numa_node")
        if len(nodes) < 2 or not isinstance(node, int) or node < 0:
            continue
        bound = f"numactl --cpunodebind={node} --membind={node}"
        return Advice(
            name="numa",
            title=f"Bind the load to memory node {node}, where {label} is attached",
            seen=f"This host has {len(nodes)} memory nodes; the disk of {label} is on node {node}. "
            f"What binding saves wasn't measured.",
            do=(
                f"{bound} pytest --benchmark-only   # measures it: compare with this run",
                f"{bound} vllm serve ...",
            ),
            cost="one node's cores and memory only: too little for an engine that needs both",
        )
    return None
