"""Block: the bookkeeping of one physical block."""

__all__ = ["Block"]


class Block:
    """One physical block.

    Attributes:
        block_id: its place in the KV tensors.
        ref_count: how many block tables hold it.
        hash: names its whole prefix once it is full and sealed; kept while it is free, until the
            block is handed out again.
        previous, next: its neighbours in the free block queue; None when it is not in there.
    """

    __slots__ = ("block_id", "hash", "next", "previous", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.hash: bytes | None = None
        self.previous: Block | None = None
        self.next: Block | None = None

    def __repr__(self) -> str:
        seal = f" #{self.hash.hex()[:4]}" if self.hash else ""
        return f"<block {self.block_id} x{self.ref_count}{seal}>"
