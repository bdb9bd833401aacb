// An attacker is on the way between two ranks. It can do nothing where they speak TLS by the job's
// secret, which they do between hosts. With `encryption: 'none'` it can read and change everything.

import dns from 'node:dns';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server } from 'node:net';
import { type ConnectWsOptions, connectWs } from '@shardweave/collectives/ws';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { schemeTo } from '../src/sockets/listen-security.js';
import { denialOfFirst } from '../src/sockets/listener.js';
import { beginFirst } from './support/first-rank.js';
import { SECRET } from './support/ws-harness.js';

const servers: Server[] = [];

afterEach(() => {
  for (const server of servers.splice(0)) {
    server.close();
  }
});

/**
 * Passes connections on to `port`, and shows each piece of bytes to `see`, which may change them.
 */
async function listenBetween(port: number, see: (bytes: Buffer) => void) {
  const server = createServer((socket) => {
    const onward = connect(port, '127.0.0.1');
    for (const [from, to] of [
      [socket, onward],
      [onward, socket],
    ] as const) {
      from.on('error', () => {});
      from.on('data', (bytes) => {
        see(bytes);
        to.write(bytes);
      });
      from.on('close', () => to.destroy());
    }
  }).listen(0, '127.0.0.1');
  servers.push(server);
  await once(server, 'listening');
  return { host: '127.0.0.1', port: (server.address() as AddressInfo).port };
}

const PLAIN = Buffer.from('what only the ranks may know, '.repeat(4000));

/**
 * Sends PLAIN from rank 1 to rank 0 through an attacker who sees and changes it. Resolves with what
 * rank 0 received.
 */
async function sendPast(
  options: Partial<ConnectWsOptions>,
  see: (bytes: Buffer) => void,
): Promise<Buffer> {
  const { port, joined } = await beginFirst(options);
  const between = await listenBetween(port, see);
  const second = connectWs({
    rank: 1,
    worldSize: 2,
    port,
    secret: SECRET,
    route: (target, to) => (target === 0 ? between : to),
    ...options,
  });
  const [first, other] = await Promise.all([joined, second]);
  const heard = Buffer.alloc(PLAIN.length);
  const calls = [first.recv(heard, { from: 1 }), other.send(PLAIN, { to: 0 })];
  const ended = await Promise.allSettled(calls);
  await Promise.all([first.close(), other.close()]);
  const failed = ended.find((one) => one.status === 'rejected');
  if (failed !== undefined) {
    throw (failed as PromiseRejectedResult).reason;
  }
  return heard;
}

/** Changes one letter of the payload wherever it can be read. */
function forge(bytes: Buffer): void {
  const at = bytes.indexOf('only the ranks');
  if (at >= 0) {
    bytes[at] = 'O'.charCodeAt(0);
  }
}

/** Flips one bit of every piece that is as long as the payload. */
function spoil(bytes: Buffer): void {
  if (bytes.length > 4096) {
    bytes[2048]! ^= 1;
  }
}

describe('an attacker on the way', () => {
  it('sees nothing of what ranks say, and is not noticed', async () => {
    const seen: Buffer[] = [];
    const heard = await sendPast({ encryption: 'always' }, (bytes) =>
      seen.push(Buffer.from(bytes)),
    );
    expect(heard.equals(PLAIN)).toBe(true);
    const all = Buffer.concat(seen);
    expect(all.length).toBeGreaterThan(PLAIN.length);
    expect(all.includes('only the ranks')).toBe(false);
    expect(all.includes('SWC5')).toBe(false); // Nothing even shows that it is a job.
  });

  it('changes nothing without the job noticing', async () => {
    const forged = sendPast({ encryption: 'always' }, spoil);
    await expect(forged).rejects.toMatchObject({ code: 'PEER_LOST' });
  });

  it('reads and forges everything where there is no encryption', async () => {
    const heard = await sendPast({ encryption: 'none' }, forge);
    expect(heard.includes('Only the ranks')).toBe(true);
    expect(heard).toHaveLength(PLAIN.length);
  });
});

describe('ranks that speak TLS by the secret', () => {
  it('refuse another secret in the TLS handshake, and say so', async () => {
    const reasons: string[] = [];
    const { port, joined } = await beginFirst({
      encryption: 'always',
      onRefused: ({ reason }) => reasons.push(reason),
    });
    const common = { rank: 1, worldSize: 2, port, encryption: 'always' } as const;
    const stranger = connectWs({ ...common, secret: 'not what the launcher made' });
    await expect(stranger).rejects.toThrow(/EPROTO: wrong secret/);
    expect(reasons).toEqual(['no TLS handshake (ERR_SSL_BINDER_DOES_NOT_VERIFY)']);
    const second = await connectWs({ ...common, secret: SECRET });
    await Promise.all([(await joined).close(), second.close()]);
  });

  it('refuse unencrypted connections by name', async () => {
    const reasons: string[] = [];
    const { port, joined } = await beginFirst({
      encryption: 'always',
      onRefused: ({ reason }) => reasons.push(reason),
    });
    const common = { rank: 1, worldSize: 2, port, secret: SECRET } as const;
    await expect(connectWs({ ...common, encryption: 'none' })).rejects.toThrow(
      /426: the peer wants TLS, see `encryption`/,
    );
    expect(reasons).toEqual(['it speaks without TLS']);
    const second = await connectWs({ ...common, encryption: 'always' });
    await Promise.all([(await joined).close(), second.close()]);
  });

  it('name the option where the listener has none', async () => {
    const { port, joined } = await beginFirst({ encryption: 'none' });
    const common = { rank: 1, worldSize: 2, port, secret: SECRET } as const;
    await expect(connectWs({ ...common, encryption: 'always' })).rejects.toThrow(
      /another `encryption`/,
    );
    const second = await connectWs(common);
    await Promise.all([(await joined).close(), second.close()]);
  });

  it('hear the worker of a rank over TLS, too', async () => {
    const { port, joined } = await beginFirst({ encryption: 'always', heartbeatMs: 20 });
    let numPieces = 0;
    let isMet: () => void = () => {};
    const met = new Promise<void>((resolve) => {
      isMet = resolve;
    });
    const seen: Buffer[] = [];
    const second = connectWs({
      rank: 1,
      worldSize: 2,
      port,
      secret: SECRET,
      listen: false,
      encryption: 'always',
      heartbeatMs: 20,
      // Rank 0's heartbeat worker listens on a port of its own.
      route: (target, to) =>
        target === 0 && to.port !== port
          ? listenBetween(to.port, (bytes) => {
              seen.push(Buffer.from(bytes));
              numPieces++;
              if (numPieces === 20) {
                isMet(); // These are heartbeats, which come after the handshakes.
              }
            })
          : to,
    });
    const groups = await Promise.all([joined, second]);
    await met;
    expect(Buffer.concat(seen).includes('SWC5')).toBe(false);
    await Promise.all(groups.map((group) => group.close()));
  });
});

describe('localhost', () => {
  it('is 127.0.0.1 to who listens and to who dials, whatever the system says', async () => {
    const lookup = vi.spyOn(dns, 'lookup');
    const { port, joined } = await beginFirst({ address: 'localhost' });
    const address = 'localhost';
    const second = await connectWs({ rank: 1, worldSize: 2, address, port, secret: SECRET });
    await Promise.all([(await joined).close(), second.close()]);
    expect(lookup.mock.calls.filter(([host]) => host === 'localhost')).toEqual([]);
    lookup.mockRestore();
  });
});

describe('between hosts', () => {
  it("a rank dials over TLS, and on loopback it doesn't", () => {
    const remote = [
      '10.77.0.2',
      'node-7',
      'fe80::1',
      '0.0.0.0',
      '128.0.0.1',
      '127.example.org',
      '127.0.0.1.evil.example',
      '127.0.0.300',
      'evil.127.0.0.1',
      'localhost.evil.example',
    ];
    for (const host of remote) {
      expect(schemeTo(host, {}), host).toBe('wss');
      expect(schemeTo(host, { encryption: 'none' }), host).toBe('ws');
    }
    for (const host of ['127.0.0.1', '127.0.1.1', 'localhost', '::1', '::ffff:127.0.0.1']) {
      expect(schemeTo(host, {}), host).toBe('ws');
      expect(schemeTo(host, { encryption: 'always' }), host).toBe('wss');
    }
  });

  it.each([
    ['10.77.0.2', false, 426],
    ['::ffff:10.77.0.2', false, 426],
    ['fe80::1', false, 426],
    [undefined, false, 426],
    ['10.77.0.2', true, undefined],
    ['127.0.0.1', true, undefined],
    ['127.0.0.1', false, undefined],
    ['::ffff:127.0.0.1', false, undefined],
    ['::1', false, undefined],
  ])('a listener answers %s, which speaks TLS: %j, by %j', (remoteAddress, isTls, status) => {
    const policy = { tls: undefined, pskKey: new Uint8Array(32), mayBePlain: true };
    expect(denialOfFirst(isTls, remoteAddress, policy)?.status).toBe(status);
    const strict = denialOfFirst(isTls, remoteAddress, { ...policy, mayBePlain: false });
    expect(strict?.status).toBe(isTls ? undefined : 426);
  });
});
