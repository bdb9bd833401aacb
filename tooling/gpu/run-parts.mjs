// Runs parts in processes of their own, one after another. A part that crashes or outruns its limit
// is lost alone, with what it had not yet appended to the rows.

import { spawn } from 'node:child_process';
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
  try {
    const child = spawn(program, args, { env, stdio: ['ignore', file, file] });
    let why;
    const end = (reason) => {
      why ??= reason;
      for (const pid of [...descendantsOf(child.pid), child.pid]) {
        killQuietly(pid);
      }
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
    return why ?? ended;
  } finally {
    closeSync(file);
  }
}

/**
 * The processes that a process has started, and those that they have. A session of their own would
 * be easier to end, but would outlive a command that a lent machine ends.
 */
function descendantsOf(pid) {
  const parents = new Map();
  for (const name of readdirSync('/proc').filter((one) => /^\d+$/.test(one))) {
    try {
      const stat = readFileSync(`/proc/${name}/stat`, 'utf8');
      parents.set(Number(name), Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]));
    } catch {
      // The process has ended meanwhile.
    }
  }
  const found = [pid];
  for (const one of found) {
    found.push(...[...parents].filter(([, parent]) => parent === one).map(([child]) => child));
  }
  return found.slice(1);
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
