// A rank whose event loop is held while it joins (by an import, a compilation, SIGSTOP or a busy
// machine) joins all the same: what came in time counts, and a connection that was given up is made
// anew.

import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { connectWs, serveRendezvous } from '@shardweave/collectives/ws';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { authenticateToListener } from '../src/sockets/authenticate.js';
import { HandlerSlot } from '../src/sockets/handler-slot.js';
import { type Hello, ListenerHandshake } from '../src/sockets/handshake.js';
import type { WireSocket } from '../src/sockets/wire-socket.js';
import { beginFirst } from './support/first-rank.js';
import { rawConnection } from './support/raw-rank.js';
import { SECRET } from './support/ws-harness.js';

const PROOF_MS = 40;

/** Gives the event loop no turn for longer than a proof may take. */
function holdLoop(): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2 * PROOF_MS);
}

afterEach(() => {
  vi.restoreAllMocks();
});

/** Makes a WireSocket of a plain connection, each of whose reads is a message. */
function wireOf(connection: Socket): WireSocket {
  const slot = new HandlerSlot();
  connection.on('data', (bytes) => slot.onBinary(bytes));
  return {
    unsentBytes: 0,
    setHandler: (handler) => slot.setHandler(handler),
    trust: () => {},
    send: (bytes) => connection.write(bytes),
    sendText: () => {},
    batch: (body) => body(),
    close: () => {},
    terminate: () => {},
  };
}

it('an answer that waits in the socket when its time is over has come in time', async () => {
  const handshake = new ListenerHandshake(SECRET);
  const server = createServer((socket) => {
    socket.write(handshake.greeting);
    socket.once('data', (answer) => {
      const judged = handshake.judge(answer);
      socket.write('proof' in judged ? judged.proof : 'refused');
      holdLoop(); // The proof has left by now, and the one who waits for it is this process.
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const connection = connect((server.address() as AddressInfo).port, '127.0.0.1');
  await once(connection, 'connect');
  const hello: Hello = {
    role: 'link',
    rank: 1,
    target: 0,
    worldSize: 2,
    attempt: 0,
    run: new Uint8Array(16),
  };
  await authenticateToListener(wireOf(connection), { secret: SECRET, hello, proofMs: PROOF_MS });
  connection.destroy();
  server.close();
});

/** Makes the event loop stand still soon after each of these nonces of this process. */
function holdAfterNonces(...numbers: readonly number[]): void {
  const { crypto } = globalThis;
  const original = crypto.getRandomValues.bind(crypto);
  let count = 0;
  vi.spyOn(crypto, 'getRandomValues').mockImplementation((array) => {
    if (numbers.includes(++count)) {
      setImmediate(holdLoop);
    }
    return original(array);
  });
}

describe('a job forms though the event loop of its ranks is held', () => {
  it.each([[2], [3, 4], [5, 6, 7]])('the job forms after nonce %i', async (...numbers) => {
    holdAfterNonces(...numbers);
    const options = { limits: { proofMs: PROOF_MS }, worldSize: 2, secret: SECRET };
    const { port, joined } = await beginFirst(options);
    const groups = await Promise.all([joined, connectWs({ ...options, rank: 1, port })]);
    await Promise.all(groups.map((group) => group.barrier()));
    await Promise.all(groups.map((group) => group.close()));
  });

  it('the job forms where neither of two ranks listens', async () => {
    holdAfterNonces(5, 7, 9);
    const options = { limits: { proofMs: PROOF_MS }, worldSize: 2, secret: SECRET };
    const { port, formed, close } = await serveRendezvous(options);
    const groups = await Promise.all(
      [0, 1].map((rank) =>
        connectWs({ ...options, rank, port, rendezvous: 'elsewhere', listen: false }),
      ),
    );
    await formed;
    await Promise.all(groups.map((group) => group.barrier()));
    await Promise.all(groups.map((group) => group.close()));
    close();
  });
});

describe('while a job forms', () => {
  const HERE = JSON.stringify({ type: 'here', address: { host: null, port: 0, beats: false } });

  /** Brings rank 1 of two as far as the table of addresses. */
  async function met() {
    const { port, joined } = await beginFirst();
    const raw = { port, secret: SECRET, rank: 1, worldSize: 2 };
    const meeting = await rawConnection('rendezvous', raw);
    meeting.send(HERE);
    await once(meeting, 'message');
    return { raw, joined, meeting };
  }

  it('a newer connection of a rank replaces the older one', async () => {
    const { raw, joined, meeting } = await met();
    const older = await rawConnection('link', raw);
    const olderBeats = await rawConnection('heartbeat', raw);
    const ended = Promise.all([once(older, 'close'), once(olderBeats, 'close')]);
    const texts: string[] = [];
    const link = await rawConnection('link', { ...raw, onText: (text) => texts.push(text) });
    await rawConnection('heartbeat', raw);
    await ended;
    meeting.send(JSON.stringify({ type: 'linked' }));
    const group = await joined;
    group.abort('enough');
    while (!texts.some((text) => text.includes('enough'))) {
      await once(link, 'message');
    }
    // The newer link hears where it can hear the rank's worker, too.
    expect(texts[0]).toMatch(/heartbeat port/);
    link.terminate();
    await group.close();
  });
});
