// A message's bytes go straight from the connection to the receiver's buffer until the receiver's
// call has rejected, and never after that.
import { connectWs } from '@shardweave/collectives/ws';
import { expect, it } from 'vitest';

const SECRET = 'a secret of the job';
const BYTES = 64 * 2 ** 20;

async function connectTwo() {
  let onListen = (_: number) => {};
  const listening = new Promise<number>((resolve) => {
    onListen = resolve;
  });
  const first = connectWs({ rank: 0, worldSize: 2, port: 0, secret: SECRET, onListen });
  const port = await listening;
  const second = connectWs({ rank: 1, worldSize: 2, port, secret: SECRET });
  return Promise.all([first, second]);
}

it.each([
  'the receiver aborts',
  'the sender aborts',
  'the receiver closes',
  'the receiver closes while it sends',
])('nothing is written to a buffer whose call has rejected: %s', async (how) => {
  const [receiver, sender] = await connectTwo();
  const buffer = new Uint8Array(BYTES);
  const isSending = how.endsWith('while it sends');
  const received = receiver.recv(buffer, { from: 1 });
  const sent = sender.send(new Uint8Array(BYTES).fill(7), { to: 0 });
  sent.catch(() => {});
  while (buffer[2 ** 20] !== 7) {
    await new Promise((resolve) => setImmediate(resolve));
  }
  if (isSending) {
    receiver.send(new Uint8Array(BYTES), { to: 1 }).catch(() => {});
  }
  const ended = how.startsWith('the receiver closes')
    ? receiver.close()
    : (how === 'the receiver aborts' ? receiver : sender).abort('enough');
  await expect(received).rejects.toThrow();
  buffer.fill(0);
  await new Promise((resolve) => setTimeout(resolve, 200));
  expect(Buffer.compare(buffer, new Uint8Array(BYTES))).toBe(0);
  await ended;
  await Promise.all([receiver.close(), sender.close()]);
});
