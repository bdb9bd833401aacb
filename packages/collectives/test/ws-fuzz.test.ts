// Malformed, truncated and oversized handshakes and frames are chosen by a seed. Strangers send
// them and never get in. A proven but broken rank sends them, is lost, and harms no other process.

import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { join } from 'node:path';
import { SeededRandom } from '@shardweave/collectives/testing';
import { connectWs } from '@shardweave/collectives/ws';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { bundleProgram } from './support/bundle-program.js';
import { beginFirst } from './support/first-rank.js';
import { helloOf, joinRaw, rawConnection } from './support/raw-rank.js';
import { SECRET } from './support/ws-harness.js';

const NUM_FRAMES = process.env.SHARDWEAVE_LONG === '1' ? 100_000 : 30_000;
const FRAMES_PER_CONNECTION = 50;
const NUM_SOCKETS = 24;
/** The memory that the listener may take during the attack: buffers of connections, and garbage. */
const MAX_GROWTH_MIB = 120;

const folder = newFolder();
const script = join(folder, 'rank.mjs');
let child: ChildProcess | undefined;

beforeAll(async () => {
  await bundleProgram(new URL('support/fuzz-rank.ts', import.meta.url), script);
});

afterAll(() => {
  child?.kill('SIGKILL');
});

const POOL_BYTES = 2 ** 17;
const poolRandom = new SeededRandom(1);
const POOL = Buffer.from(Uint8Array.from({ length: POOL_BYTES }, () => poolRandom.below(256)));

/** Returns pieces of one pool, since so many frames have many bytes. */
function bytesOf(random: SeededRandom, length: number): Buffer {
  const from = random.below(POOL_BYTES - length);
  return POOL.subarray(from, from + length);
}

/** Returns a WebSocket frame with any first byte and any claimed length. */
function frame(first: number, said: bigint, bytes: Buffer, mask: Buffer): Buffer {
  const head = Buffer.alloc(10);
  head[0] = first;
  head[1] = 0x80 | 127;
  head.writeBigUInt64BE(said, 2);
  // Long payloads are noise with or without a mask.
  const masked = bytes.length > 400 ? bytes : bytes.map((byte, i) => byte ^ mask[i % 4]!);
  return Buffer.concat([head, mask, masked]);
}

const binary = (random: SeededRandom, bytes: Buffer) =>
  frame(0x82, BigInt(bytes.length), bytes, bytesOf(random, 4));

/** What a stranger may send in place of its proof. `greeting` is the one it was sent. */
const LIES: readonly ((random: SeededRandom, greeting: Buffer) => Buffer)[] = [
  (random) => bytesOf(random, 1 + random.below(200)),
  (random) => binary(random, bytesOf(random, random.below(300))),
  (random) => binary(random, Buffer.alloc(0)),
  (random) => binary(random, Buffer.concat([Buffer.from('SWC5'), bytesOf(random, 100)])),
  (random, greeting) => binary(random, greeting), // This sends the greeting back.
  (random, greeting) => binary(random, helloOf(greeting, 'not the secret', [1, 1, 0, 2, 0])),
  (random, greeting) => {
    const hello = helloOf(greeting, SECRET, [1, 1, 0, 2, 0]);
    hello[random.below(hello.length)]! ^= 1 + random.below(255); // One byte is wrong.
    return binary(random, hello);
  },
  (random, greeting) => {
    const hello = helloOf(greeting, SECRET, [0, 1, 0xffffffff, 2, 0]);
    return binary(random, hello.subarray(0, random.below(hello.length)));
  },
  // These proofs are right for another job: for another role, rank, target, size or attempt.
  (random, greeting) =>
    binary(random, helloOf(greeting, SECRET, [5 + random.below(1000), 1, 0, 2, 0])),
  (random, greeting) =>
    binary(random, helloOf(greeting, SECRET, [1, 1, 0, 3 + random.below(9), 0])),
  (random, greeting) => binary(random, helloOf(greeting, SECRET, [0, 1, 0xffffffff, 2, 1])),
  (random, greeting) =>
    binary(random, helloOf(greeting, SECRET, [0, 2 + random.below(1e9), 0xffffffff, 2, 0])),
  (random, greeting) =>
    binary(random, helloOf(greeting, SECRET, [1, 1, 1 + random.below(9), 2, 0])),
  (random) => frame(0x81, 5n, Buffer.from('hello'), bytesOf(random, 4)),
  (random) => frame(0x82, 2n ** BigInt(random.below(63)), bytesOf(random, 40), bytesOf(random, 4)),
  (random) => frame(0x82, 60_000n, bytesOf(random, 60_000), bytesOf(random, 4)),
  (random) =>
    frame(random.below(256), BigInt(random.below(200)), bytesOf(random, 40), bytesOf(random, 4)),
  (random) => frame(0x02, 10n, bytesOf(random, 10), bytesOf(random, 4)), // This is a fragment.
  (random) =>
    frame(0x88, BigInt(random.below(130)), bytesOf(random, random.below(130)), bytesOf(random, 4)),
  (random) => frame(0x89, 125n, bytesOf(random, 125), bytesOf(random, 4)), // This is a ping.
];

const UPGRADE = [
  'GET / HTTP/1.1',
  'Host: x',
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Version: 13',
  'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==',
  '',
  '',
].join('\r\n');

/** What a stranger may send in place of an upgrade request. */
const REQUESTS: readonly ((random: SeededRandom) => Buffer)[] = [
  (random) => bytesOf(random, 1 + random.below(2000)),
  (random) => Buffer.from(UPGRADE.slice(0, random.below(UPGRADE.length))),
  () => Buffer.from(UPGRADE.replace('Host: x', `Host: ${'x'.repeat(40_000)}`)),
  (random) => Buffer.from(UPGRADE.replace('13', String(random.below(99)))),
  () => Buffer.from(UPGRADE.replace('Host: x', 'Origin: http://evil.example')),
  () => Buffer.alloc(0),
];

/**
 * The reasons of proofs, which a stranger hears itself; of refusals only some a second are told.
 */
const JUDGED = ['wrong secret', 'not a rank of this program and version'] as const;
const heard = new Map<string, number>(JUDGED.map((reason) => [reason, 0]));

/** Opens one connection with `lies` of the seed. Resolves when it has ended. */
async function attack(port: number, random: SeededRandom): Promise<number> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => {});
  socket.on('data', (data: Buffer) => {
    for (const reason of JUDGED.filter((each) => data.includes(each))) {
      heard.set(reason, heard.get(reason)! + 1);
    }
  });
  const ended = once(socket, 'close').catch(() => {});
  let count = 1;
  if (random.below(10) === 0) {
    socket.end(REQUESTS[random.below(REQUESTS.length)]!(random));
    socket.resume();
  } else {
    socket.write(UPGRADE);
    socket.once('data', (data: Buffer) => {
      // The last bytes are the greeting if it came with the upgrade's answer, and some other bytes
      // if not.
      const greeting = data.subarray(-36);
      // A stranger that sends much at once is cut off for that alone. So some lies are sent alone,
      // to be judged.
      const last = random.below(4) === 0 ? 1 : FRAMES_PER_CONNECTION;
      for (; count <= last; count++) {
        socket.write(LIES[random.below(LIES.length)]!(random, greeting));
      }
      if (random.below(4) === 0) {
        socket.destroy();
      } else {
        socket.end();
        socket.resume();
      }
    });
  }
  const timer = setTimeout(() => socket.destroy(), 1000);
  await ended;
  clearTimeout(timer);
  return count;
}

async function ask(): Promise<{ rssMiB: number; reasons: Record<string, number> }> {
  child!.send('memory');
  const [answer] = await once(child!, 'message');
  return answer;
}

describe('strangers', () => {
  it(`strangers that say ${NUM_FRAMES} wrong things neither get in nor harm the rank that listens`, async () => {
    const startMs = performance.now();
    child = fork(script, { env: { ...process.env, SECRET } });
    const [{ port }] = (await once(child, 'message')) as [{ port: number }];
    const before = await ask();
    const random = new SeededRandom(20_261_121);
    let [count, connections] = [0, 0];
    await Promise.all(
      Array.from({ length: NUM_SOCKETS }, async () => {
        while (count < NUM_FRAMES) {
          const said = await attack(port, random);
          count += said;
          connections++;
        }
      }),
    );
    const after = await ask();
    const floodMs = performance.now() - startMs;

    // No stranger has got in: the place of rank 1 is free, and the job forms and works.
    const worked = once(child, 'message');
    const group = await connectWs({ rank: 1, worldSize: 2, port, secret: SECRET });
    const all = new Uint8Array(2 * 100_000);
    await group.allGather(new Uint8Array(100_000).fill(2), all);
    expect(all.reduce((sum, x) => sum + x, 0)).toBe(300_000);
    expect((await worked)[0]).toEqual({ sum: 300_000 });
    const exited = once(child, 'exit');
    await group.close();
    expect((await exited)[0]).toBe(0);

    const refused = Object.values(after.reasons).reduce((sum, n) => sum + n, 0);
    process.stdout.write(
      `ws fuzz: ${count} wrong frames and requests over ${connections} connections in ` +
        `${(floodMs / 1000).toFixed(1)} s, ${refused} refusals of ` +
        `${Object.keys(after.reasons).length} kinds; resident ` +
        `${before.rssMiB.toFixed(0)} -> ${after.rssMiB.toFixed(0)} MiB\n`,
    );
    expect(refused).toBeGreaterThan(connections / 3);
    for (const count of heard.values()) {
      expect(count).toBeGreaterThan(20);
    }
    expect(after.rssMiB - before.rssMiB).toBeLessThan(MAX_GROWTH_MIB);
  }, 180_000);
});

/** Returns a message header of docs/wire-format.md, here that of a barrier's empty message. */
function header(change: (bytes: Buffer) => void, rest = Buffer.alloc(0)): Buffer {
  const bytes = Buffer.alloc(36 + 5);
  bytes.set([2, 7, 255, 5]);
  bytes.writeInt32LE(-1, 24);
  bytes[34] = 5;
  bytes.write('world', 36);
  change(bytes);
  return Buffer.concat([bytes, rest]);
}

const nothing = () => {};
const json = (value: unknown) => JSON.stringify(value);
const failure = (fields: object) => json({ type: 'failure', failure: fields });

/** What a proven rank may send that our own ranks never would. */
const BROKEN: readonly (readonly [string, (random: SeededRandom) => Buffer | string])[] = [
  ['random bytes', (random) => bytesOf(random, 1 + random.below(500))],
  ['an empty message', () => Buffer.alloc(0)],
  ['another version', () => header((bytes) => bytes.writeUInt8(9, 0))],
  ['an unknown operation', () => header((bytes) => bytes.writeUInt8(200, 1))],
  ['an unknown reduction', () => header((bytes) => bytes.writeUInt8(100, 2))],
  ['an unknown dtype', () => header((bytes) => bytes.writeUInt8(77, 3))],
  ['a truncated header', (random) => header(nothing).subarray(0, random.below(41))],
  ['a size that is no number', () => header((bytes) => bytes.writeDoubleLE(Number.NaN, 16))],
  ['a size below zero', () => header((bytes) => bytes.writeDoubleLE(-8, 16))],
  ['a size of a petabyte', () => header((bytes) => bytes.writeDoubleLE(2 ** 50, 16))],
  ['a fraction of a byte', () => header((bytes) => bytes.writeDoubleLE(0.5, 8))],
  ['a root below none', () => header((bytes) => bytes.writeInt32LE(-7, 24))],
  ['a longer group id than there is', () => header((bytes) => bytes.writeUInt8(255, 34))],
  ['more bytes than it said', () => header(nothing, Buffer.alloc(100))],
  ['text that is no JSON', () => '{'],
  ['JSON that is no object', () => '[1]'],
  ['null', () => 'null'],
  ['an unknown type', () => json({ type: 'table' })],
  ['a failure without fields', () => json({ type: 'failure' })],
  ['a failure of a rank that is none', () => failure({ kind: 'aborted', origin: 9, reason: '' })],
  ['an unknown failure', () => failure({ kind: 'x', origin: 0, reason: '' })],
  ['a reason that is none', () => failure({ kind: 'aborted', origin: 0, reason: 5 })],
  ['a mismatch without calls', () => failure({ kind: 'mismatch', origin: 0, reason: '' })],
  ['an inquiry of no group', () => json({ type: 'mismatch', sequence: 0, members: [], calls: [] })],
];

describe('a proven rank that is broken', () => {
  it('a rank that announces too long a message is lost before it comes', async () => {
    const { port, joined } = await beginFirst();
    const link = await joinRaw({ port, secret: SECRET, rank: 1, worldSize: 2 });
    const pending = (await joined).barrier();
    link.send(Buffer.alloc(2 ** 22)); // This is more than any chunk.
    await expect(pending).rejects.toThrow(/a message of 4194304 bytes, over 2097152/);
    link.terminate();
  });

  it('is told why it is lost', async () => {
    const { port, joined } = await beginFirst();
    const texts: string[] = [];
    const onText = (text: string) => texts.push(text);
    const raw = { port, secret: SECRET, rank: 1, worldSize: 2 };
    const link = await joinRaw({ ...raw, onText });
    const group = await joined;
    const closed = once(link, 'close');
    link.send('{');
    link.send(json({ type: 'failure', failure: { kind: 'aborted', origin: 1, reason: 'late' } }));
    const [code] = await closed;
    const failure = {
      kind: 'peer-lost',
      origin: 1,
      reason: "it sent what can't be read: text that is no JSON",
    };
    expect([code, JSON.parse(texts.at(-1)!)]).toEqual([4001, { type: 'failure', failure }]);
    await group.close();
  });

  it.each(BROKEN)('a rank that sends %s is lost, with a reason', async (_, say) => {
    const random = new SeededRandom(7);
    const { port, joined } = await beginFirst();
    const link = await joinRaw({ port, secret: SECRET, rank: 1, worldSize: 2 });
    const group = await joined;
    const pending = group.barrier();
    link.send(say(random));
    await expect(pending).rejects.toMatchObject({
      code: 'PEER_LOST',
      originRank: 1,
      message: expect.stringMatching(/it sent (no message of ours|what can't be read): ./),
    });
    await expect(group.barrier()).rejects.toMatchObject({ code: 'PEER_LOST', originRank: 1 });
    link.terminate();
  });

  it.each([
    ['bytes', Buffer.alloc(10)],
    ['no JSON', 'x'],
    ['an address without a port', json({ type: 'here', address: { host: null, beats: true } })],
    [
      'a host that is none',
      json({ type: 'here', address: { host: 'a/../b', port: 1, beats: true } }),
    ],
  ])('a rank that tells the rendezvous %s ends the job that was to form', async (_, said) => {
    const { port, joined } = await beginFirst();
    const refused = expect(joined).rejects.toMatchObject({ code: 'JOIN' });
    const options = { port, secret: SECRET, rank: 1, worldSize: 2 };
    const meeting = await rawConnection('rendezvous', options);
    meeting.send(said);
    await refused;
    meeting.terminate();
  });
});
