// How two ranks prove to each other that they know the job's secret, before anything is parsed:
//   listener -> joiner   magic (4), nonce (32)
//   joiner -> listener   magic, own rank, listener's rank, world size, listening port (u32 each),
//                        nonce (32), HMAC-SHA256 over 'joiner', these fields and both nonces (32)
//   listener -> joiner   HMAC-SHA256 over 'listener' and the same (32)
// The secret is never sent, and both nonces are fresh, so nothing can be replayed.

import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import type { WebSocket } from 'ws';

const PROTOCOL = 'SWC1';
const MAGIC = Buffer.from(PROTOCOL);
const NONCE_BYTES = 32;
const MAC_BYTES = 32;
const FIELDS_END = MAGIC.length + 16;
const HELLO_BYTES = FIELDS_END + NONCE_BYTES + MAC_BYTES;

/** Close code for a peer that is turned away; the reason says why. */
export const REFUSED_CODE = 4401;

/** How long a peer may take to prove itself. */
export const PROOF_MS = 5000;

/** What a joiner says about itself. */
export interface Hello {
  readonly rank: number;
  readonly target: number;
  readonly worldSize: number;
  /** Where it listens for higher ranks. */
  readonly port: number;
}

/** The listener's side: the hello of a peer that knows the secret, else null and the reason. */
export async function challenge(
  socket: WebSocket,
  secret: string,
): Promise<{ hello: Hello; accept: () => void } | { refusal: string }> {
  const nonce = randomBytes(NONCE_BYTES);
  const answer = nextMessage(socket);
  socket.send(Buffer.concat([MAGIC, nonce]));
  const data = await answer;
  if (data.length !== HELLO_BYTES || !data.subarray(0, MAGIC.length).equals(MAGIC)) {
    return { refusal: 'not a rank of this program and version' };
  }
  const said = data.subarray(0, HELLO_BYTES - MAC_BYTES);
  const expected = mac(secret, 'joiner', nonce, said);
  if (!timingSafeEqual(expected, data.subarray(HELLO_BYTES - MAC_BYTES))) {
    return { refusal: 'wrong secret' };
  }
  const field = (i: number) => said.readUInt32LE(MAGIC.length + 4 * i);
  const hello = { rank: field(0), target: field(1), worldSize: field(2), port: field(3) };
  return { hello, accept: () => socket.send(mac(secret, 'listener', nonce, said)) };
}

/** The listener's first word, its nonce. Call it as soon as the socket exists. */
export async function greetingOf(socket: WebSocket): Promise<Buffer> {
  const greeting = await nextMessage(socket);
  const nonce = greeting.subarray(MAGIC.length);
  if (nonce.length !== NONCE_BYTES || !greeting.subarray(0, MAGIC.length).equals(MAGIC)) {
    throw new Error('not a rank of this program and version');
  }
  return nonce;
}

export interface ProveOptions {
  readonly secret: string;
  readonly nonce: Buffer;
  readonly hello: Hello;
  /** Called at once, before the socket's next message is read. */
  onProven(): void;
}

/** The joiner's side. Rejects with the listener's reason where it is refused. */
export async function prove(socket: WebSocket, options: ProveOptions): Promise<void> {
  const { secret, nonce, hello, onProven } = options;
  const said = Buffer.alloc(HELLO_BYTES - MAC_BYTES);
  MAGIC.copy(said);
  [hello.rank, hello.target, hello.worldSize, hello.port].forEach((value, i) => {
    said.writeUInt32LE(value, MAGIC.length + 4 * i);
  });
  randomBytes(NONCE_BYTES).copy(said, FIELDS_END);
  const expected = mac(secret, 'listener', nonce, said);
  const answer = nextMessage(socket, (proof) => {
    if (proof.length !== MAC_BYTES || !timingSafeEqual(proof, expected)) {
      throw new Error('the listener does not know the secret');
    }
    onProven();
  });
  socket.send(Buffer.concat([said, mac(secret, 'joiner', nonce, said)]));
  await answer;
}

function mac(secret: string, role: string, nonce: Buffer, said: Buffer): Buffer {
  const hmac = createHmac('sha256', secret);
  return hmac.update(`shardweave ${role}\n`).update(nonce).update(said).digest();
}

/** The next binary message, which `inspect` sees first; rejects when PROOF_MS have passed. */
function nextMessage(
  socket: WebSocket,
  inspect: (data: Buffer) => void = () => {},
): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const finish = (settle: () => void) => {
      clearTimeout(timer);
      socket.off('message', onMessage).off('close', onClose).off('error', onError);
      settle();
    };
    const onMessage = (data: Buffer, isBinary: boolean) =>
      finish(() => {
        try {
          if (!isBinary) {
            throw new Error('expected a binary message');
          }
          inspect(data);
          resolve(data);
        } catch (error) {
          reject(error);
        }
      });
    const onClose = (code: number, reason: Buffer) =>
      finish(() => reject(new Error(reason.toString() || `the connection closed, code ${code}`)));
    const onError = (error: Error) => {
      socket.on('error', () => {}); // a broken socket may say so twice
      finish(() => reject(error));
    };
    const timer = setTimeout(() => finish(() => reject(new Error('no answer'))), PROOF_MS);
    socket.on('message', onMessage).on('close', onClose).on('error', onError);
  });
}
