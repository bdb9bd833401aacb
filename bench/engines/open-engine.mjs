// Starts a process for each engine and exchanges messages with it: by IPC with Node, by lines of
// JSON with Python.

import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const BENCH = fileURLToPath(new URL('..', import.meta.url));

/**
 * Starts an engine. Where this machine lacks what the engine needs, it tells `onMissing` why, or
 * stderr, and returns undefined.
 *
 * @param {string} key the engine's name in reports
 * @param {{ command: readonly string[], env?: Record<string, string>, onMissing?: (why: string) =>
 * void }} options the command is `node` or a Python, then a file of this folder, then arguments
 */
export async function openEngine(key, { command, env, onMissing }) {
  const [runtime, file, ...args] = command;
  const isNode = runtime === 'node';
  const child = spawn(isNode ? process.execPath : runtime, [file, ...args], {
    cwd: BENCH,
    stdio: isNode ? ['ignore', 'ignore', 'pipe', 'ipc'] : ['pipe', 'pipe', 'pipe'],
    env: { ...process.env, OMP_WAIT_POLICY: 'PASSIVE', ...env },
  });
  let stderr = '';
  child.stderr.on('data', (chunk) => {
    stderr = (stderr + chunk).slice(-2000);
  });
  const waiting = new Map();
  const receive = (message) => waiting.get(message.id ?? 'ready')?.(message);
  if (isNode) {
    child.on('message', receive);
  } else {
    createInterface({ input: child.stdout }).on('line', (line) => receive(JSON.parse(line)));
  }
  let isClosing = false;
  const exited = new Promise((resolve) => {
    child.on('error', resolve);
    child.on('exit', () => resolve(new Error(`exited: ${stderr.trim().split('\n').at(-1)}`)));
  });
  const next = (id) => new Promise((resolve) => waiting.set(id, resolve));
  let lastId = 0;
  const ask = async (request) => {
    const id = ++lastId;
    const answer = next(id);
    if (isNode) {
      child.send({ id, ...request });
    } else {
      child.stdin.write(`${JSON.stringify({ id, ...request })}\n`);
    }
    const message = await Promise.race([answer, exited]);
    if (message instanceof Error) {
      throw message;
    }
    if (message.error !== undefined) {
      throw new Error(message.error);
    }
    return message;
  };
  const ready = await Promise.race([next('ready'), exited]);
  if (ready instanceof Error) {
    const say = onMissing ?? ((why) => console.error(`${key}: left out, ${why}`));
    say(ready.message);
    return undefined;
  }
  let isOpen = true;
  exited.then((error) => {
    isOpen = false;
    if (!isClosing) {
      console.error(`${key}: ${error.message}`);
    }
  });
  const close = () => {
    isClosing = true;
    child.kill();
  };
  return { key, name: ready.ready, ask, close, isOpen: () => isOpen };
}
