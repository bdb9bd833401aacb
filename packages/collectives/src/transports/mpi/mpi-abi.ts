// What differs between the binary interfaces of MPI: the way to pass handles, and the constants of
// mpi.h. Open MPI's handles are addresses of symbols of the library. MPICH's are integers, the same
// in Intel MPI, MVAPICH and Cray MPICH, which share its ABI.

/** A communicator, datatype, operation or request: an address (bigint) or an integer. */
export type MpiHandle = bigint | number;

export interface MpiAbi {
  readonly name: 'Open MPI' | 'MPICH';
  /** The C type of a handle, as koffi names it. */
  readonly handleType: 'void *' | 'int';
  readonly world: MpiHandle;
  readonly byte: MpiHandle;
  readonly f32: MpiHandle;
  readonly i32: MpiHandle;
  readonly u32: MpiHandle;
  readonly sum: MpiHandle;
  readonly max: MpiHandle;
  readonly min: MpiHandle;
  readonly requestNull: MpiHandle;
  readonly errorsReturn: MpiHandle;
  readonly anySource: number;
  /** Addresses with a special meaning, in place of a buffer or of statuses. */
  readonly inPlace: bigint;
  readonly statusIgnore: bigint;
}

/** The values of mpi.h of Open MPI 4. What is used here has been ABI-compatible since 1.7. */
export function openMpiAbi(symbol: (name: string) => bigint): MpiAbi {
  return {
    name: 'Open MPI',
    handleType: 'void *',
    world: symbol('ompi_mpi_comm_world'),
    byte: symbol('ompi_mpi_byte'),
    f32: symbol('ompi_mpi_float'),
    i32: symbol('ompi_mpi_int32_t'),
    u32: symbol('ompi_mpi_uint32_t'),
    sum: symbol('ompi_mpi_op_sum'),
    max: symbol('ompi_mpi_op_max'),
    min: symbol('ompi_mpi_op_min'),
    requestNull: symbol('ompi_request_null'),
    errorsReturn: symbol('ompi_mpi_errors_return'),
    anySource: -1,
    inPlace: 1n,
    statusIgnore: 0n,
  };
}

/** The values of mpi.h of MPICH 4 (ABI number 12). */
export const MPICH_ABI: MpiAbi = {
  name: 'MPICH',
  handleType: 'int',
  world: 0x44000000,
  byte: 0x4c00010d,
  f32: 0x4c00040a,
  i32: 0x4c000439,
  u32: 0x4c00043d,
  sum: 0x58000003,
  max: 0x58000001,
  min: 0x58000002,
  requestNull: 0x2c000000,
  errorsReturn: 0x54000001,
  anySource: -2,
  inPlace: 0xffff_ffff_ffff_ffffn,
  statusIgnore: 1n,
};
