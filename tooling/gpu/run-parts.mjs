// Runs parts in processes of their own, one after another. A part that crashes or outruns its limit
// is lost alone, with what it had not yet appended to the rows.

import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import {
  appendFileSync,
  closeSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
} from 'node:fs';
import { join } from 'node:path';
import { appendRow } from '../../bench/figures/rows.mjs';

const TAIL_LINES = 25;
/** The variable by which the processes of a part are known. */
const MARK = 'SHARDWEAVE_GPU_PART';
const MOST_TURNS = 3;

/**
 * @param {readonly { name: string, limit: number, args: (where: object) => string[] }[]} parts
 * `limit` is in seconds; the arguments are those of `program`, by default Node
 * @param {{ rows: string, scratch: string, env?: object, where?: object, program?: string,
 * signal?: AbortSignal, onEnd?: (name: string, outcome: object) => void }} options the file of
 * rows, a folder for everything else, a signal that ends the running part and all after it, and
 * what is told how a part ended (`{ ended, seconds }`)
 * @returns {Promise<boolean>} whether every part ended well
 */
export async function runParts(parts, options) {
  const { rows, scratch, env = {}, where = {}, signal, onEnd } = options;
  const { program = process.execPath } = options;
  let isOk = true;
  for (const { name, limit, args } of parts) {
    if (signal?.aborted) {
      return false;
    }
    const folder = join(scratch, name);
    mkdirSync(folder, { recursive: true });
    appendRow(rows, { begins: name });
    const log = join(scratch, `${name}.log`);
    const start = performance.now();
    const all = { ...process.env, ...env };
    const command = [program, ...args({ ...where, rows, scratch: folder })];
    const ended = await runPart(command, { log, limit, env: all, signal });
    const seconds = (performance.now() - start) / 1000;
    const tail = ended === 0 ? undefined : tailOf(log);
    appendFileSync(rows, ended === 0 ? '' : '\n'); // it may have been ended within a line
    appendRow(rows, { ends: name, ended, seconds, tail });
    rmSync(folder, { recursive: true, force: true }); // a trained model has 500 MB
    isOk &&= ended === 0;
    onEnd?.(name, { ended, seconds });
  }
  return isOk;
}

/** @returns {Promise<number | string>} the exit code, or what ended the part */
async function runPart([program, ...args], { log, limit, env, signal }) {
  const file = openSync(log, 'w');
  const mark = randomUUID();
  try {
    const child = spawn(program, args, {
      env: { ...env, [MARK]: mark },
      stdio: ['ignore', file, file],
    });
    let why;
    const end = (reason) => {
      why ??= reason;
      killMarked(mark);
    };
    const timer = setTimeout(() => end(`the limit of ${limit} s`), 1000 * limit);
    const stop = () => end('a signal');
    signal?.addEventListener('abort', stop, { once: true });
    const ended = await new Promise((resolve) => {
      child.on('error', (error) => resolve(error.message));
      child.on('exit', (code, name) => resolve(name ?? code));
    });
    clearTimeout(timer);
    signal?.removeEventListener('abort', stop);
    killMarked(mark); // what a part that crashed has started would slow the next one down
    return why ?? ended;
  } finally {
    closeSync(file);
  }
}

/**
 * Ends the processes of a part, those too whose parent has ended before them: all that a process
 * starts has its variables. A session of their own would be easier to end, but would outlive a
 * command that a lent machine ends.
 */
function killMarked(mark) {
  // What a process has started since it was looked for is met in the next turn. A process that
  // hangs in a driver ends late or never, and is not waited for.
  for (let turn = 0; turn < MOST_TURNS; turn++) {
    for (const pid of readdirSync('/proc').filter((one) => /^\d+$/.test(one))) {
      if (variablesOf(pid).includes(`${MARK}=${mark}`)) {
        killQuietly(Number(pid));
      }
    }
  }
}

function variablesOf(pid) {
  try {
    return readFileSync(`/proc/${pid}/environ`, 'latin1').split('\0');
  } catch {
    return []; // it has ended meanwhile, or is another user's
  }
}

function killQuietly(pid) {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // It has ended by itself.
  }
}

function tailOf(log) {
  return readFileSync(log, 'utf8').trimEnd().split('\n').slice(-TAIL_LINES).join('\n');
}
