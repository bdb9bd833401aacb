// This rank is made only from docs/wire-format.md, `ws` and node:crypto, so that it can send what
// our own ranks never would. It opens its links and listens for none.

import { createHash, createHmac, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { WebSocket } from 'ws';

export interface RawRankOptions {
  readonly port: number;
  readonly secret: string;
  readonly rank: number;
  readonly worldSize: number;
  /** The run id. By default none is sent. */
  readonly runId?: string;
  /** The origin that a page would send. */
  readonly origin?: string;
  /** Gets each text message, from the first on: one may come together with the proof. */
  readonly onText?: (text: string) => void;
}

const ROLES = {
  rendezvous: 0,
  link: 1,
  heartbeat: 2,
  relay: 3,
  'heartbeat subscriber': 4,
} as const;
const RENDEZVOUS = 0xffffffff;

/** Returns a joiner's answer to `greeting`. */
export function helloOf(
  greeting: Buffer,
  secret: string,
  fields: readonly [role: number, rank: number, target: number, worldSize: number, attempt: number],
  runId = 'none',
): Buffer {
  const numbers = Buffer.alloc(20);
  fields.forEach((value, i) => {
    numbers.writeUInt32LE(value, 4 * i);
  });
  const said = Buffer.concat([Buffer.from('SWC5'), numbers, runOf(runId), randomBytes(32)]);
  return Buffer.concat([said, proofOf('joiner', { secret, greeting, said })]);
}

/** Returns the proof that either side sends. */
function proofOf(
  side: 'joiner' | 'listener',
  from: { readonly secret: string; readonly greeting: Buffer; readonly said: Buffer },
): Buffer {
  return createHmac('sha256', from.secret)
    .update(`shardweave ${side}\n`)
    .update(from.greeting.subarray(4))
    .update(from.said)
    .digest();
}

/** Returns the bytes that stand for a run in the hello. */
const runOf = (runId: string) => createHash('sha256').update(runId).digest().subarray(0, 16);

/**
 * Opens a proven connection to rank 0, to its heartbeat worker, or to the rendezvous that it hosts.
 * Rejects with the code of the close, or with what kept it from opening.
 */
export async function rawConnection(
  role: keyof typeof ROLES,
  options: RawRankOptions,
): Promise<WebSocket> {
  const { port, secret, rank, worldSize, origin, runId, onText } = options;
  const socket = new WebSocket(`ws://127.0.0.1:${port}`, {
    perMessageDeflate: false,
    ...(origin === undefined ? {} : { origin }),
  });
  socket.on('error', () => {});
  socket.on('message', (data, isBinary) => {
    if (!isBinary) {
      onText?.(data.toString());
    }
  });
  const [greeting] = await nextMessage(socket);
  const target = role === 'rendezvous' ? RENDEZVOUS : 0;
  const hello = helloOf(greeting, secret, [ROLES[role], rank, target, worldSize, 0], runId);
  socket.send(hello);
  const [proof] = await nextMessage(socket);
  const said = hello.subarray(0, -proof.length);
  if (!proof.equals(proofOf('listener', { secret, greeting, said }))) {
    throw new Error('the listener has not proved itself');
  }
  return socket;
}

async function nextMessage(socket: WebSocket): Promise<[Buffer]> {
  const closed = new Promise<never>((_, reject) => {
    socket.once('error', reject).once('close', (code) => reject(new Error(`closed, ${code}`)));
  });
  closed.catch(() => {}); // The connection outlives this function.
  return Promise.race([once(socket, 'message') as Promise<[Buffer]>, closed]);
}

/** Joins a job of two whose rank 0 listens at `port`. Resolves with the link when it has formed. */
export async function joinRaw(options: RawRankOptions): Promise<WebSocket> {
  const meeting = await rawConnection('rendezvous', options);
  const heard = once(meeting, 'message');
  const address = { host: null, port: 0, beats: false };
  meeting.send(JSON.stringify({ type: 'here', address }));
  await heard; // The message is the table.
  const link = await rawConnection('link', options);
  const formed = once(meeting, 'message');
  meeting.send(JSON.stringify({ type: 'linked' }));
  await formed;
  return link;
}
