// The constants that are chosen by measurement, with the values to compare and where to measure.

const KIB = 1024;
const MIB = KIB ** 2;
const NEVER = '2 ** 40';

/**
 * `values` are expressions under the names that the report uses. `transports` are names of
 * contenders. `cells` are operations and sizes.
 */
export const THRESHOLDS = [
  {
    constant: 'GATHER_ALL_MAX_BYTES',
    file: 'algorithms/all-reduce.ts',
    values: { never: '0', '16 KiB': '16 * 1024', '64 KiB': '64 * 1024' },
    transports: ['ws', 'shm'],
    worldSizes: [2, 4],
    operations: ['all-reduce'],
    sizes: [4 * KIB, 16 * KIB, 32 * KIB, 64 * KIB],
  },
  {
    constant: 'ROOTED_MIN_RANKS',
    file: 'algorithms/all-reduce.ts',
    values: { 4: '4', never: NEVER },
    transports: ['memory', 'shm', 'ws'],
    worldSizes: [4],
    operations: ['all-reduce'],
    sizes: [4, 4 * KIB, 16 * KIB],
  },
  {
    constant: 'MAX_SEGMENT_BYTES',
    file: 'algorithms/part-layout.ts',
    values: {
      '128 KiB': '128 * 1024',
      '256 KiB': '256 * 1024',
      '512 KiB': '512 * 1024',
      '1 MiB': '2 ** 20',
      '2 MiB': '2 ** 21',
    },
    transports: ['ws', 'shm', 'shm-registered'],
    worldSizes: [2, 4],
    operations: ['all-reduce'],
    sizes: [MIB, 4 * MIB, 32 * MIB],
  },
  {
    constant: 'MAX_RING_BYTES',
    file: 'transports/shm/job-memory.ts',
    values: {
      '256 KiB': '256 * 1024',
      '512 KiB': '512 * 1024',
      '1 MiB': '2 ** 20',
      '2 MiB': '2 ** 21',
      '4 MiB': '2 ** 22',
    },
    transports: ['shm'],
    worldSizes: [2, 4],
    operations: ['all-gather', 'send-recv'],
    sizes: [MIB, 4 * MIB, 32 * MIB],
  },
  {
    constant: 'SCATTER_MIN_BYTES',
    file: 'algorithms/scatter-broadcast.ts',
    values: { always: '0', never: NEVER },
    transports: ['ws'],
    worldSizes: [4],
    operations: ['broadcast'],
    sizes: [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB],
  },
  {
    constant: 'EAGER_BYTES',
    file: 'algorithms/message-halves.ts',
    values: { '256 KiB': '256 * 1024', '1 MiB': '2 ** 20', '4 MiB': '2 ** 22' },
    transports: ['ws'],
    worldSizes: [2],
    operations: ['all-gather'],
    sizes: [MIB, 4 * MIB, 32 * MIB],
  },
];
