// The heartbeat worker of a rank listens for peers that can't listen themselves, while the job
// forms and only for those that prove the secret. (faults.test.ts tests what they hear.)

import { once } from 'node:events';
import { connect } from 'node:net';
import { describe, expect, it } from 'vitest';
import { beginFirst } from './support/first-rank.js';
import { rawConnection } from './support/raw-rank.js';
import { SECRET } from './support/ws-harness.js';

describe('the worker that listens for them', () => {
  it('lets in who proves the secret and is expected, once, and nobody later', async () => {
    const refusals: string[] = [];
    const { port, joined } = await beginFirst({
      limits: { proofMs: 1000, maxStrangers: 6 },
      onRefused: ({ reason }) => refusals.push(reason),
    });
    const place = { port, secret: SECRET, rank: 1, worldSize: 2 };
    const meeting = await rawConnection('rendezvous', place);
    meeting.send(JSON.stringify({ type: 'here', address: { host: null, port: 0, beats: false } }));
    await once(meeting, 'message'); // The message is the table.
    let tell: (text: string) => void = () => {};
    const said = new Promise<string>((resolve) => {
      tell = resolve;
    });
    const link = await rawConnection('link', { ...place, onText: tell });
    const message = JSON.parse(await said) as { type: string; port: number };
    expect(message).toEqual({ type: 'heartbeat port', port: expect.any(Number) });
    const there = { ...place, port: message.port };

    // Strangers come: with another origin, without a proof, with nonsense in place of one, and too
    // many at once.
    await expect(
      rawConnection('heartbeat subscriber', { ...there, origin: 'http://a.b' }),
    ).rejects.toThrow();
    await say(message.port, 'GET / HTTP/1.1\r\nHost: here\r\n\r\n');
    await say(message.port, 'nonsense\r\n\r\n');
    await say(message.port, ''); // This stranger sends nothing.
    // A stranger that sends more than its proof is cut off, and isn't told how that was judged.
    const told = await say(message.port, UPGRADE, ONE_BYTE + ONE_BYTE);
    expect(told).toMatch(/^HTTP\/1.1 101 /);
    expect(told).not.toContain('not a rank');
    await expect(
      rawConnection('heartbeat subscriber', { ...there, secret: 'a guess' }),
    ).rejects.toThrow('4401');
    await Promise.all(Array.from({ length: 8 }, () => say(message.port, '')));
    // These know the secret, but claim another role or come twice.
    await expect(rawConnection('link', there)).rejects.toThrow('4401');
    const subscriber = await rawConnection('heartbeat subscriber', there);
    await expect(rawConnection('heartbeat subscriber', there)).rejects.toThrow('4401');
    expect(refusals).toEqual(
      expect.arrayContaining([
        'origin http://a.b is not allowed',
        'a request that is no WebSocket',
        'no proof within 1000 ms',
        'the oldest of 6 that had proved nothing',
        'wrong secret',
        'no link here',
        'no heartbeat subscriber here',
      ]),
    );

    const [beat] = (await once(subscriber, 'message')) as [Buffer];
    expect(beat).toHaveLength(0);
    meeting.send(JSON.stringify({ type: 'linked' }));
    await joined;
    await expect(rawConnection('heartbeat subscriber', there)).rejects.toThrow(/ECONNREFUSED/);
    await once(subscriber, 'message'); // The subscriber that is in goes on.
    const pending = (await joined).barrier();
    subscriber.terminate(); // Only the subscriber itself is lost.
    link.terminate();
    await expect(pending).rejects.toMatchObject({ code: 'PEER_LOST', originRank: 1 });
  });
});

const UPGRADE = [
  'GET / HTTP/1.1',
  'Host: here',
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Version: 13',
  'Sec-WebSocket-Key: c2hhcmR3ZWF2ZSB0ZXN0cw==',
  '\r\n',
].join('\r\n');

/** This is a binary message, masked with zeros. */
const ONE_BYTE = '\x82\x81\0\0\0\0x';

/**
 * Sends something to a port, and `more` when that is answered. Resolves with what was said when the
 * other end has closed.
 */
async function say(port: number, text: string, more = ''): Promise<string> {
  const socket = connect(port, '127.0.0.1').on('error', () => {});
  const heard: Buffer[] = [];
  socket.on('data', (bytes: Buffer) => heard.push(bytes));
  socket.write(text, 'latin1');
  socket.once('data', () => socket.write(more, 'latin1'));
  await once(socket, 'close');
  return Buffer.concat(heard).toString('latin1');
}
