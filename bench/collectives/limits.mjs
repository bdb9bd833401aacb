// The limits that the project sets for its transports, as conditions on the cells of one run.

const MIB = 2 ** 20;
const HELD_MS = 20;
/**
 * How many MiB the memory outside the heap may grow. What Node itself keeps varies by more than a
 * page.
 */
const GROWTH_MIB = 1;

/** @returns {{ asked: string, held: number, of: number, worst: string }[]} */
export function limitsOf(run) {
  const { cells, probes } = run;
  const at = (contender, { operation, worldSize, size }) =>
    cells.find(
      (cell) =>
        cell.contender === contender &&
        cell.operation === operation &&
        cell.worldSize === worldSize &&
        cell.size === size &&
        cell.error === undefined,
    );
  /**
   * Pairs the cells of `ours` with those of `theirs` and asks that the ratio of bandwidths is at
   * least `atLeast`.
   */
  const compare = (asked, ours, theirs, atLeast, isMeant) => {
    const pairs = cells
      .filter((cell) => cell.contender === ours && cell.error === undefined && isMeant(cell))
      .map((cell) => ({ cell, other: at(theirs, cell) }))
      .filter(({ other }) => other !== undefined)
      .map(({ cell, other }) => ({ cell, ratio: other.ms / cell.ms }));
    return summary(
      asked,
      pairs,
      ({ ratio }) => ratio >= atLeast,
      ({ ratio }) => ratio,
      (pair) => `${pair.ratio.toFixed(2)} (${place(pair.cell)})`,
    );
  };
  const isGather = ({ operation }) => operation === 'all-gather';
  const isReduce = ({ operation }) => operation === 'all-reduce';
  const isSized = ({ size }) => size > 4;
  const limits = [
    compare('ws: all-gather at least Gloo', 'ws', 'gloo', 1, (c) => isGather(c) && isSized(c)),
    compare(
      'ws: all-reduce to 1 MiB at least Gloo',
      'ws',
      'gloo',
      1,
      (c) => isReduce(c) && isSized(c) && c.size <= MIB,
    ),
    compare(
      'ws: all-reduce above 1 MiB at least 0.8 of plain sockets',
      'ws',
      'net',
      0.8,
      (c) => isReduce(c) && c.size > MIB,
    ),
    ...['shm', 'shm-registered'].flatMap((shm) => [
      compare(`${shm}: at least twice ws from 1 MiB up`, shm, 'ws', 2, ({ size }) => size >= MIB),
      compare(
        `${shm}: all-gather at least Open MPI from 1 MiB up`,
        shm,
        'openmpi',
        1,
        (c) => isGather(c) && c.size >= MIB,
      ),
      compare(
        `${shm}: all-gather at least Open MPI below 1 MiB`,
        shm,
        'openmpi',
        1,
        (c) => isGather(c) && isSized(c) && c.size < MIB,
      ),
    ]),
    compare(
      'shm-registered: all-gather at least 0.8 of plain Atomics and copies from 1 MiB up',
      'shm-registered',
      'atomics',
      0.8,
      (c) => isGather(c) && c.size >= MIB,
    ),
    ...['memory', 'shm', 'ws', 'mpi'].map((name) =>
      compare(
        `${name}: all-reduce of 4 bytes in a quarter of Gloo's time`,
        name,
        'gloo',
        4,
        (c) => isReduce(c) && c.size === 4,
      ),
    ),
    ...[
      ['heldMs', `the event loop held ${HELD_MS} ms at most in 64 MiB`],
      ['coreMs', `a turn of the event loop ${HELD_MS} ms on a core at most in 64 MiB`],
    ].map(([field, asked]) =>
      summary(
        asked,
        probes.filter(({ error, contender }) => error === undefined && !isYardstick(contender)),
        (probe) => probe[field] <= HELD_MS,
        (probe) => -probe[field],
        (probe) => `${probe[field].toFixed(1)} ms (${probe.contender}, ${place(probe)})`,
      ),
    ),
    summary(
      'no growth of memory outside the heap in the steady state',
      probes.filter(({ memory, contender }) => memory !== undefined && !isYardstick(contender)),
      ({ memory }) => memory.afterMiB - memory.beforeMiB <= GROWTH_MIB,
      ({ memory }) => memory.beforeMiB - memory.afterMiB,
      (probe) =>
        `${(probe.memory.afterMiB - probe.memory.beforeMiB).toFixed(2)} MiB (${probe.contender}, ${place(probe)})`,
    ),
  ];
  return limits.filter(({ of }) => of > 0);
}

/** Whether a contender is ours but no transport. */
function isYardstick(contender) {
  return contender === 'net' || contender === 'atomics';
}

/** Summarizes one limit. The worst item is the one with the lowest `scoreOf`. */
function summary(asked, list, isHeld, scoreOf, describe) {
  const worst = list.reduce((a, b) => (a && scoreOf(a) <= scoreOf(b) ? a : b), undefined);
  return {
    asked,
    held: list.filter(isHeld).length,
    of: list.length,
    worst: worst === undefined ? '-' : describe(worst),
  };
}

function place({ operation, worldSize, size, bytes }) {
  const at = size ?? bytes;
  const text =
    at >= MIB ? `${Math.round(at / MIB)} MiB` : at >= 1024 ? `${at / 1024} KiB` : `${at} B`;
  return `${operation} ${text}, ${worldSize} ranks`;
}
