// What every report says about its run: the command, the machine, and what else ran on it.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import os from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';

const GIB = 2 ** 30;
/** The kernel's clock ticks every 10 ms, so a tenth of a core shows as five ticks in this time. */
const BUSY_SAMPLE_MS = 500;
const BUSY_SHARE = 0.1;
const TICK_MS = 10;

/**
 * Begins the record of a run. Call it before anything is started, so that whatever is found busy
 * does not belong to the bench.
 * @param {string} script such as `bench/ddp.mjs`
 */
export async function startRecord(script) {
  const { load, busy } = await conditions();
  return {
    date: new Date().toISOString().slice(0, 10),
    command: `node ${script} ${process.argv.slice(2).join(' ')}`.trim(),
    machine: `${os.availableParallelism()} cores of ${os.cpus()[0].model}, ${Math.round(os.totalmem() / GIB)} GiB, ${os.type()} ${os.release()}, Node ${process.version}`,
    cores: os.availableParallelism(),
    load: { start: load },
    busy: { start: busy },
  };
}

/** Completes the record. Call it after everything has ended. */
export async function endRecord(record) {
  const { load, busy } = await conditions();
  record.load.end = load;
  record.busy.end = busy;
  return record;
}

/** The best and the median of samples, and their number. */
export function timesOf(samples) {
  const sorted = [...samples].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const median =
    sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return { best: sorted[0], median, rounds: sorted.length };
}

/** The lines at the head of every report. */
export function headOf(title, record) {
  return [
    `# ${title}, ${record.date}`,
    `${record.machine}. ${loadOf(record)}`,
    `Command: \`${record.command}\``,
  ].join('\n\n');
}

/** A sentence or two about what else the machine did. */
export function loadOf({ load, busy }) {
  const loads = ['start', 'end'].map((when) => load[when].map((x) => x.toFixed(2)).join(' '));
  const others = ['start', 'end'].flatMap((when) =>
    busy?.[when] ? [{ when, list: busy[when] }] : [],
  );
  const found = others.filter(({ list }) => list.length > 0);
  const sentences = [
    `Load average (1, 5, 15 minutes) at the start ${loads[0]}, at the end ${loads[1]}, the run's own included.`,
  ];
  if (found.length > 0) {
    const names = found.map(({ when, list }) => {
      const shares = list.map(({ name, share }) => `${name} ${share.toFixed(1)}`);
      return `at the ${when} ${shares.join(', ')}`;
    });
    sentences.push(`**Other work ran beside it**, in cores: ${names.join('; ')}.`);
  } else if (others.length > 0) {
    sentences.push('No other process took a tenth of a core at either end.');
  }
  return sentences.join(' ');
}

async function conditions() {
  const load = os.loadavg();
  if (!existsSync('/proc/self/stat')) {
    return { load };
  }
  const before = cpuMsByProcess();
  const start = performance.now();
  await sleep(BUSY_SAMPLE_MS);
  const elapsedMs = performance.now() - start;
  const busy = [...cpuMsByProcess()]
    .filter(([pid]) => pid !== process.pid && before.has(pid))
    .map(([pid, { name, ms }]) => ({ name, share: (ms - before.get(pid).ms) / elapsedMs }))
    .filter(({ share }) => share >= BUSY_SHARE)
    .sort((a, b) => b.share - a.share);
  return { load, busy: busy.slice(0, 5) };
}

/** The name and the processor time of every process that Linux lists. */
function cpuMsByProcess() {
  const found = new Map();
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
      const name = stat.slice(stat.indexOf('(') + 1, stat.lastIndexOf(')'));
      const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
      const [userTicks, systemTicks] = [Number(fields[11]), Number(fields[12])];
      found.set(Number(pid), { name, ms: (userTicks + systemTicks) * TICK_MS });
    } catch {
      // The process has ended meanwhile.
    }
  }
  return found;
}
