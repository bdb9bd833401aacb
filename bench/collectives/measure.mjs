// The measurement. For each world size all contenders stay open, and each cell's rounds go through
// them in turn, so that a busy moment of the machine affects all alike.
import { freemem } from 'node:os';
import { Job } from './job.mjs';
import { bufferBytes, busBandwidth, ELEMENT_BYTES } from './operations.mjs';

const MIB = 2 ** 20;

/**
 * Short calls are repeated for this long in each round. Then a clock tick and one wake-up do not
 * show, and what a sample finds cold (code, caches, the scheduler's choice of cores) is a small
 * part of it.
 */
export const SAMPLE_MS = 30;

/**
 * A cell whose rounds have taken this long gets no further round, so that the whole run ends in
 * time.
 */
const MAX_CELL_MS = 10_000;

/**
 * JavaScript is compiled while it is hot. So before anything is timed, every operation runs for
 * this long at each of these sizes.
 */
const WARM_UP_MS = 400;
const WARM_UP_SIZES = [4 * 1024, 256 * 1024];

/**
 * As in nccl-tests, a sample begins with some calls that do not count. While the other contenders
 * had their turns, this one's code and data left the caches.
 */
const WARM_UP_CALLS = 5;

/**
 * The size for the probes of the event loop and of memory. The limit is set for a collective of 64
 * MiB.
 */
const PROBE_BYTES = 64 * MIB;
const PROBE_REPETITIONS = 3;
const MEMORY_REPETITIONS = 12;

/**
 * @param options the flags of collectives.mjs
 * @returns {{ cells: object[], probes: object[], contenders: object[], leftOut: string[] }}
 */
export async function measureAll(options) {
  const result = { cells: [], probes: [], contenders: [], leftOut: [] };
  for (const worldSize of options.worldSizes) {
    const jobs = await startAll(worldSize, options, result);
    try {
      for (const job of jobs) {
        await warmUp(job, worldSize, options);
      }
      for (const size of options.sizes) {
        for (const operation of options.operations) {
          const cell = await measureCell(jobs, { operation, size, worldSize }, options, result);
          result.cells.push(...cell);
        }
      }
      if (options.hasProbes) {
        result.probes.push(...(await probeAll(jobs, worldSize, options, result)));
      }
    } finally {
      await Promise.all(jobs.map((job) => job.close()));
    }
  }
  return result;
}

async function startAll(worldSize, options, { contenders: present, leftOut }) {
  const { contenders, folder, secret, nodeArgs, sizes, log } = options;
  const smallest = worldSize * ELEMENT_BYTES;
  const maxBytes = Math.max(...sizes, options.hasProbes ? PROBE_BYTES : 0, smallest);
  const jobs = [];
  for (const contender of contenders) {
    try {
      const job = await Job.start(contender, worldSize, { folder, secret, nodeArgs, maxBytes });
      jobs.push(Object.assign(job, { contender }));
      const { name, says, isRival } = contender;
      if (!present.some((other) => other.name === name)) {
        present.push({ name, says, isRival, version: job.version });
      }
    } catch (error) {
      leftOut.push(`${contender.name}, ${worldSize} ranks: ${error.message}`);
      log(`${contender.name} with ${worldSize} ranks is left out: ${error.message}`);
    }
  }
  return jobs;
}

async function warmUp(job, worldSize, { operations, sizes }) {
  const largest = Math.max(...sizes);
  for (const operation of operations.filter((name) => !job.contender.lacks.includes(name))) {
    for (const size of WARM_UP_SIZES.filter((bytes) => bytes <= largest)) {
      const { whole, beside } = bufferBytes(operation, size, worldSize);
      // What fails here fails again in a cell, and is reported there.
      await attempt({}, async () => {
        await job.ask({ do: 'prepare', operation, whole, beside });
        const end = performance.now() + WARM_UP_MS;
        for (let n = 1; performance.now() < end; n = Math.min(2 * n, 256)) {
          await timeOnce(job, n);
        }
      });
    }
  }
}

async function measureCell(jobs, { operation, size, worldSize }, options, { leftOut }) {
  const { whole, beside } = bufferBytes(operation, size, worldSize);
  const needed = worldSize * jobs.length * (size >= 64 * MIB ? beside : 0);
  if (needed > freemem() * 0.8) {
    leftOut.push(`${operation}, ${size} bytes, ${worldSize} ranks: the memory free does not do`);
    return [];
  }
  const entrants = [];
  for (const job of jobs.filter(({ contender }) => !contender.lacks.includes(operation))) {
    const entrant = { job, samples: [], repetitions: 1, error: undefined };
    entrants.push(entrant);
    await attempt(entrant, async () => {
      await job.ask({ do: 'prepare', operation, whole, beside });
      await job.ask({ do: 'check' });
      // The first call maps memory and fills pools. The pace is that of later calls.
      const pace = await timeOnce(job, 1);
      const { sampleMs } = options;
      if (pace.ms < sampleMs) {
        const { ms } = await timeOnce(job, Math.min(100, Math.ceil(sampleMs / pace.ms)));
        entrant.repetitions = Math.max(1, Math.ceil(sampleMs / ms));
      } else {
        entrant.samples.push(pace); // one long call is a whole sample
      }
    });
  }
  const end = performance.now() + MAX_CELL_MS;
  for (let round = 0; round < roundsOf(size, options.rounds); round++) {
    if (round > 0 && performance.now() > end) {
      break;
    }
    // Each round begins with another contender, so that none always follows the same one.
    for (let i = 0; i < entrants.length; i++) {
      const entrant = entrants[(i + round) % entrants.length];
      await attempt(entrant, async () => {
        entrant.samples.push(await timeOnce(entrant.job, entrant.repetitions));
      });
    }
  }
  for (const entrant of entrants) {
    await attempt(entrant, () => entrant.job.ask({ do: 'recheck' }));
  }
  const rows = entrants.map(({ job, samples, error }) => {
    const cell = { contender: job.name, operation, worldSize, size, bytes: whole };
    if (error !== undefined) {
      return { ...cell, error };
    }
    const ms = median(samples.map((sample) => sample.ms));
    const cpuMs = median(samples.map((sample) => sample.cpuMs));
    const minMs = Math.min(...samples.map((sample) => sample.ms));
    const busGiBps = busBandwidth(operation, whole, worldSize, ms) / 2 ** 30;
    return { ...cell, ms, minMs, cpuMs, busGiBps, rounds: samples.length };
  });
  for (const { contender, error } of rows.filter((row) => row.error !== undefined)) {
    leftOut.push(`${contender}, ${operation}, ${size} bytes, ${worldSize} ranks: ${error}`);
  }
  options.log(describe(rows, operation, size, worldSize));
  dropEnded(jobs);
  return rows;
}

/** Large cells have fewer rounds, since one call lasts longer than most disturbances. */
function roundsOf(size, rounds) {
  if (size >= 256 * MIB) {
    return Math.min(rounds, 2);
  }
  return size >= 16 * MIB ? Math.min(rounds, 5) : rounds;
}

async function attempt(entrant, work) {
  if (entrant.error !== undefined) {
    return;
  }
  try {
    await work();
  } catch (error) {
    entrant.error = error.message;
  }
}

/** The times of the slowest rank. */
async function timeOnce(job, repetitions) {
  const warmUps = Math.min(WARM_UP_CALLS, repetitions - 1);
  const answers = await job.ask({ do: 'time', repetitions, warmUps });
  const most = (field) => Math.max(...answers.map((answer) => answer[field]));
  return { ms: most('ms'), cpuMs: most('cpuMs') };
}

async function probeAll(jobs, worldSize, { operations, log }, { leftOut }) {
  const probes = [];
  for (const job of jobs.filter(({ contender }) => contender.adapter !== undefined)) {
    for (const operation of operations.filter((name) => !job.contender.lacks.includes(name))) {
      const { whole, beside } = bufferBytes(operation, PROBE_BYTES, worldSize);
      const row = { contender: job.name, operation, worldSize, bytes: whole };
      try {
        await job.ask({ do: 'prepare', operation, whole, beside });
        await job.ask({ do: 'check' });
        const loops = await job.ask({ do: 'probe', repetitions: PROBE_REPETITIONS });
        row.heldMs = Math.max(...loops.map(({ heldMs }) => heldMs));
        row.coreMs = Math.max(...loops.map(({ coreMs }) => coreMs));
        row.gapMs = Math.max(...loops.map(({ gapMs }) => gapMs));
        row.isExact = loops.every(({ isExact }) => isExact);
        if (operation === 'all-reduce') {
          const rows = await job.ask({ do: 'memory', repetitions: MEMORY_REPETITIONS });
          row.memory = rows.reduce((a, b) => (growth(b) > growth(a) ? b : a));
        }
      } catch (error) {
        row.error = error.message;
        leftOut.push(`${job.name}, probe of ${operation}, ${worldSize} ranks: ${error.message}`);
      }
      probes.push(row);
    }
    const own = probes.filter(({ contender, error }) => contender === job.name && !error);
    const most = (field) => Math.max(0, ...own.map((row) => row[field])).toFixed(1);
    log(
      `${job.name} x${worldSize}: event loop held ${most('heldMs')}, on a core ${most('coreMs')} ms`,
    );
  }
  dropEnded(jobs);
  return probes;
}

function growth({ beforeMiB, afterMiB }) {
  return afterMiB - beforeMiB;
}

function dropEnded(jobs) {
  for (const job of jobs.filter(({ hasEnded }) => hasEnded)) {
    jobs.splice(jobs.indexOf(job), 1);
  }
}

function describe(rows, operation, size, worldSize) {
  const cells = rows.map(({ contender, ms, busGiBps, error }) => {
    if (error !== undefined) {
      return `${contender} failed`;
    }
    return `${contender} ${size < 65536 ? `${(ms * 1000).toFixed(0)} us` : busGiBps.toFixed(2)}`;
  });
  return `${operation} ${size} x${worldSize}: ${cells.join(', ')}`;
}

function median(list) {
  const sorted = [...list].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
