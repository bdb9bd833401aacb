// A client that knows the secret sends nonsense, chosen by a seed. The store drops its connection
// or refuses the call, and serves the others. (A client without the secret gets no further than in
// ws-fuzz.test.ts.)

import { once } from 'node:events';
import { connectStore, StoreServer } from '@shardweave/collectives/launch';
import { SeededRandom } from '@shardweave/collectives/testing';
import { afterEach, describe, expect, it } from 'vitest';
import { WebSocket } from 'ws';
import { helloOf } from './support/raw-rank.js';

const SECRET = 'made by the launcher';
const STORE_ROLE = 4;
const NUM_MESSAGES = 4000;
const NUM_SOCKETS = 8;

const opened: AsyncDisposable[] = [];

afterEach(async () => {
  for (const one of opened.splice(0).reverse()) {
    await one[Symbol.asyncDispose]();
  }
});

async function rawClient(port: number, rank = 0xffffffff): Promise<WebSocket> {
  const socket = new WebSocket(`ws://127.0.0.1:${port}`, { perMessageDeflate: false });
  socket.on('error', () => {});
  const [greeting] = (await once(socket, 'message')) as [Buffer];
  socket.send(helloOf(greeting, SECRET, [STORE_ROLE, rank, 0, 2, 0]));
  await once(socket, 'message'); // This is the server's proof.
  return socket;
}

/** Builds a message that may claim any sizes. */
function message(
  header: string,
  body = Buffer.alloc(0),
  sizes?: readonly [number, number],
): Buffer {
  const text = Buffer.from(header);
  const said = sizes ?? [text.length, body.length];
  const head = Buffer.alloc(8);
  head.writeUInt32LE(said[0], 0);
  head.writeUInt32LE(said[1], 4);
  return Buffer.concat([head, text, body]);
}

const OPEN = message('{"id":0,"op":"open","runId":"fuzz","lengths":[]}');
const OPERATIONS = [
  'set',
  'get',
  'add',
  'compareSet',
  'check',
  'wait',
  'delete',
  'barrier',
  'open',
];
const FIELDS = ['key', 'keys', 'amount', 'name', 'timeoutMs', 'runId', 'op'];
const VALUES = [
  ...['null', '-1', '1e999', '0.5', '"k"', '""', '[]', '{}', '["a",1]', 'true', '[1e9]', '[-1]'],
  ...['"__proto__"', '{"toString":1}', `"${'x'.repeat(2000)}"`, '[null]', '4294967296', '"NaN"'],
];

const bytesOf = (random: SeededRandom, length: number) =>
  Buffer.from(Uint8Array.from({ length }, () => random.below(256)));

const pick = <T>(random: SeededRandom, from: readonly T[]): T => from[random.below(from.length)]!;

/** Builds a message with an unknown or wrong request; most of them are answered. */
function badRequest(random: SeededRandom): Buffer {
  const field = () => `"${pick(random, FIELDS)}":${pick(random, VALUES)}`;
  const fields = Array.from({ length: random.below(3) }, field);
  const head = ['"id":7', `"op":"${pick(random, OPERATIONS)}"`, '"key":"k"', '"timeoutMs":1'];
  return message(`{${[...head, '"lengths":[]', ...fields].join(',')}}`);
}

/** Builds bytes that are no message, or whose sizes are wrong: they end the connection. */
function noMessage(random: SeededRandom): Buffer {
  const sizes = [random.below(2 ** 32), 2 ** 24 + random.below(2 ** 31)] as const;
  return pick(random, [
    () => bytesOf(random, random.below(8)),
    () => message('{"id":1,"op":"numKeys"}', Buffer.alloc(0), sizes),
    () => message(bytesOf(random, random.below(50)).toString('latin1')),
    () => message('{"id":1,"op":"set","key":"k","lengths":[3]}', bytesOf(random, 4)),
    () => message('{"id":1,"op":"set","key":"k","lengths":[-4,8]}', bytesOf(random, 4)),
    () => Buffer.concat([message('{"id":1,"op":"numKeys"}'), bytesOf(random, 1)]),
    () => message('{"op":"numKeys","lengths":[]}'),
    () => message('{"id":{"toString":1},"op":"numKeys","lengths":[]}'),
  ])();
}

describe('nonsense from a client that is let in', () => {
  it(`${NUM_MESSAGES} times and more: none ends the store, and others are served`, async () => {
    const server = await StoreServer.listen({ secret: SECRET });
    opened.push(server);
    const honest = await connectStore({ port: server.port, secret: SECRET });
    opened.push(honest);
    let numSaid = 0;
    let numReplies = 0;
    const speak = async (seed: number) => {
      const random = new SeededRandom(seed);
      while (numSaid < NUM_MESSAGES) {
        const socket = await rawClient(server.port);
        socket.on('message', () => {
          numReplies++;
        });
        const closed = once(socket, 'close');
        const said = [OPEN, ...Array.from({ length: 60 }, () => badRequest(random))];
        for (const one of [...said, noMessage(random)]) {
          socket.send(one, () => {});
        }
        numSaid += said.length + 1;
        await closed; // The server closes it.
      }
    };
    await Promise.all(Array.from({ length: NUM_SOCKETS }, (_, seed) => speak(seed)));
    expect(numReplies).toBeGreaterThan(NUM_MESSAGES / 2); // Most messages were read and answered.
    expect(await honest.add('served', 1)).toBe(1);
    expect(await honest.numKeys()).toBe(1);
    await expect.poll(() => server.numClients, { timeout: 30_000 }).toBe(1);
  });

  it('is answered where it is a request, and ends the connection where it is none', async () => {
    const server = await StoreServer.listen({ secret: SECRET });
    opened.push(server);
    const socket = await rawClient(server.port);
    const ask = async (header: object) => {
      socket.send(message(JSON.stringify({ lengths: [], ...header })));
      const [data] = (await once(socket, 'message')) as [Buffer];
      return JSON.parse(data.subarray(8, 8 + data.readUInt32LE(0)).toString());
    };
    const early = await ask({ id: 1, op: 'numKeys' });
    expect(early).toMatchObject({ id: 1, error: { message: 'store: open comes first' } });
    expect(await ask({ id: 2, op: 'open', runId: 'r' })).toMatchObject({ id: 2 });
    const again = await ask({ id: 3, op: 'open', runId: 'other' });
    expect(again).toMatchObject({ id: 3, error: { code: 'STORE_USAGE' } });
    const unknown = await ask({ id: 4, op: 'drop tables' });
    expect(unknown.error.message).toBe('store drop tables: no operation of the store');
    socket.send(message('{"op":"numKeys"}')); // This request lacks its number.
    await once(socket, 'close');
    await expect.poll(() => server.numClients, { timeout: 30_000 }).toBe(0);
  });
});
