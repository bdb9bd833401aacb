// Several processes use one store. The tests check how they meet, what they hear when the store
// dies or stops, and that an idle store keeps no process alive.

import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { bundleProgram } from './support/bundle-program.js';

const WORLD_SIZE = 3;
const folder = mkdtempSync(join(tmpdir(), 'store-'));
const program = join(folder, 'store-child.mjs');
const running: ChildProcess[] = [];

beforeAll(() => bundleProgram(new URL('support/store-child.ts', import.meta.url), program));

afterEach(() => {
  for (const child of running.splice(0)) {
    child.kill('SIGKILL');
  }
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

function start(ROLE: string, more: Readonly<Record<string, string>> = {}): ChildProcess {
  const env = { ...process.env, ROLE, SECRET: 'made by the launcher', ...more };
  const child = fork(program, { env });
  running.push(child);
  return child;
}

async function message(child: ChildProcess): Promise<Readonly<Record<string, unknown>>> {
  const [said] = await once(child, 'message');
  return said;
}

/**
 * Starts a store in one process and clients in others, and resolves when all of them have met at a
 * barrier.
 */
async function startAll(ROLE: string, more: Readonly<Record<string, string>> = {}) {
  const server = start('serves');
  const { port } = await message(server);
  const clients = Array.from({ length: WORLD_SIZE }, (_, rank) =>
    start(ROLE, {
      PORT: String(port),
      RANK: String(rank),
      WORLD_SIZE: String(WORLD_SIZE),
      ...more,
    }),
  );
  const said = await Promise.all(clients.map(message));
  expect(said.map(({ sum }) => sum).sort()).toEqual([1, 2, 3]);
  return { server, clients };
}

describe('processes with a store', () => {
  it('meet, and end by themselves without closing it; the server stays', async () => {
    const { server, clients } = await startAll('uses');
    const exits = clients.map((child) => child.exitCode ?? once(child, 'exit'));
    for (const exit of await Promise.all(exits)) {
      expect(Array.isArray(exit) ? exit[0] : exit).toBe(0);
    }
    expect(server.exitCode).toBeNull();
  });

  it.each([
    ['SIGKILL', /the server is lost \(/, {}],
    ['SIGSTOP', /the server is lost \(silent for 2500 ms\)/, { SILENCE_MS: '2500' }],
  ] as const)('hear of a server that got %s', async (signal, text, more) => {
    const { server, clients } = await startAll('waits', more);
    const endings = clients.map(message);
    const exits = clients.map((child) => once(child, 'exit'));
    server.kill(signal);
    for (const ending of await Promise.all(endings)) {
      expect(ending).toMatchObject({ code: 'STORE_LOST' });
      expect(ending.message).toMatch(text);
    }
    expect((await Promise.all(exits)).map(([code]) => code)).toEqual([0, 0, 0]);
  });
});
