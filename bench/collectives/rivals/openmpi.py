"""Open MPI with its default settings, by mpi4py on numpy's memory, without copies or pickling."""

import json
import os
import sys

from mpi4py import MPI

from serve import serve


class OpenMpi:
    def __init__(self, rank, world_size, spec):
        self.comm = MPI.COMM_WORLD
        assert (self.comm.rank, self.comm.size) == (rank, world_size)
        self.rank, self.world_size = rank, world_size
        self.name = MPI.Get_library_version().split(",")[0]

    def prepare(self, operation, whole, beside):
        comm = self.comm
        if operation == "all-gather":
            return lambda: comm.Allgather(beside, whole)
        if operation == "reduce-scatter":
            return lambda: comm.Reduce_scatter_block(whole, beside)
        if operation == "all-reduce":
            return lambda: comm.Allreduce(MPI.IN_PLACE, whole)
        if operation == "broadcast":
            return lambda: comm.Bcast(whole, 0)
        to, source = (self.rank + 1) % self.world_size, (self.rank - 1) % self.world_size
        return lambda: comm.Sendrecv(beside, to, recvbuf=whole, source=source)

    def barrier(self):
        self.comm.Barrier()

    def close(self):
        MPI.Finalize()


spec = json.loads(sys.argv[1])
serve(spec, int(os.environ["OMPI_COMM_WORLD_RANK"]), OpenMpi)
