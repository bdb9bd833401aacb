// These tests join a job over ws: who is let in, who is refused, and that a refusal harms no other
// rank.

import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';
import { connectWs } from '@shardweave/collectives/ws';
import { describe, expect, it } from 'vitest';
import { WebSocket } from 'ws';
import { beginFirst } from './support/first-rank.js';
import { failureOf, untilInTime } from './support/in-time.js';
import { rawConnection } from './support/raw-rank.js';
import { SECRET } from './support/ws-harness.js';

describe('joining', () => {
  it('refuses a wrong secret and leaves the job unharmed', async () => {
    const { port, joined } = await beginFirst();
    const intruder = connectWs({ rank: 1, worldSize: 2, port, secret: 'a guess of some length' });
    await expect(intruder).rejects.toThrow(
      /rank 1\/2 join: refused by the rendezvous: wrong secret/,
    );
    const second = await connectWs({ rank: 1, worldSize: 2, port, secret: SECRET });
    const first = await joined;
    await Promise.all([first.barrier(), second.barrier()]);
    await Promise.all([first.close(), second.close()]);
  });

  it('refuses a listener that does not know the secret', async () => {
    const { port, joined } = await beginFirst({ worldSize: 2, secret: 'of another job, not ours' });
    await expect(connectWs({ rank: 1, worldSize: 2, port, secret: SECRET })).rejects.toThrow(
      /wrong secret/,
    );
    void joined;
  });

  it('refuses another world size and a rank that is there already', async () => {
    const { port, joined } = await beginFirst({ worldSize: 3 });
    const connect = (rank: number, worldSize: number) =>
      connectWs({ rank, worldSize, port, secret: SECRET });
    await expect(connect(1, 4)).rejects.toThrow(/world size is 3 here, not 4/);
    // The second to come is turned away, and the first waits for rank 2.
    const rivals = [connect(1, 3), connect(1, 3)];
    await expect(Promise.race(rivals)).rejects.toThrow(/rank 1 is here already/);
    const two = connect(2, 3);
    const groups = await Promise.all([joined, Promise.any(rivals), two]);
    await Promise.all(groups.map((group) => group.barrier()));
    await Promise.all(groups.map((group) => group.close()));
  });

  it('refuses browsers and lets strangers that say nonsense harm nobody', async () => {
    const { port, joined } = await beginFirst();
    const page = new WebSocket(`ws://127.0.0.1:${port}`, { origin: 'http://example.com' });
    const [error] = (await once(page, 'error')) as [Error];
    expect(error.message).toMatch(/401/);
    for (const nonsense of ['text', Buffer.alloc(120, 7), Buffer.alloc(3_000_000)]) {
      const stranger = new WebSocket(`ws://127.0.0.1:${port}`, { perMessageDeflate: false });
      stranger.on('error', () => {});
      await once(stranger, 'message');
      stranger.send(nonsense);
      await once(stranger, 'close');
    }
    const second = await connectWs({ rank: 1, worldSize: 2, port, secret: SECRET });
    const first = await joined;
    await Promise.all([first.barrier(), second.barrier()]);
    // The job is complete, so no rank listens any more.
    const late = new WebSocket(`ws://127.0.0.1:${port}`);
    await expect(once(late, 'open')).rejects.toThrow(/ECONNREFUSED/);
    await Promise.all([first.close(), second.close()]);
  });

  it('refuses who says that it is the rank that listens', async () => {
    const { port, joined } = await beginFirst();
    for (const role of ['link', 'heartbeat'] as const) {
      const itself = rawConnection(role, { port, secret: SECRET, rank: 0, worldSize: 2 });
      await expect(itself).rejects.toThrow('closed, 4401');
    }
    const second = await connectWs({ rank: 1, worldSize: 2, port, secret: SECRET });
    await Promise.all([(await joined).close(), second.close()]);
  });

  it('names the ranks that did not come, on all that did', async () => {
    await untilInTime(500, async (joinTimeoutMs) => {
      const { port, joined } = await beginFirst({ worldSize: 4, joinTimeoutMs });
      const second = connectWs({ rank: 1, worldSize: 4, port, secret: SECRET, joinTimeoutMs });
      second.catch(() => {}); // The promise is awaited below.
      const { message } = await failureOf(joined);
      if (message.includes('no sign of ranks 1, 2, 3')) {
        return false;
      }
      expect(message).toContain(`rank 0/4 join: no sign of ranks 2, 3 within ${joinTimeoutMs} ms`);
      await expect(second).rejects.toThrow(/rank 1\/4 join: .*no sign of ranks 2, 3/);
      return true;
    });
  });

  it('waits for a rank 0 that starts later', async () => {
    const reserved = createServer().listen(0, '127.0.0.1');
    await once(reserved, 'listening');
    const { port } = reserved.address() as { port: number };
    reserved.close();
    await once(reserved, 'close');
    const second = connectWs({ rank: 1, worldSize: 2, port, secret: SECRET });
    await new Promise((resolve) => setTimeout(resolve, 200));
    const first = connectWs({ rank: 0, worldSize: 2, port, secret: SECRET });
    await Promise.all([(await first).close(), (await second).close()]);
  });

  it('dials again where it is cut off before it was judged', async () => {
    const { port, joined } = await beginFirst();
    let numCut = 0;
    const gate = createServer((socket) => {
      const onward = connect(port, '127.0.0.1');
      for (const end of [socket, onward]) {
        end.on('error', () => {});
      }
      onward.pipe(socket);
      socket.on('data', (data) => {
        // These bytes are the hello, masked with zeros. Its sender is not the first candidate to be
        // cut as the oldest stranger.
        if (numCut < 2 && data.includes('SWC5')) {
          numCut++;
          socket.resetAndDestroy();
          onward.destroy();
        } else {
          onward.write(data);
        }
      });
    }).listen(0, '127.0.0.1');
    await once(gate, 'listening');
    const via = { host: '127.0.0.1', port: (gate.address() as AddressInfo).port };
    const second = await connectWs({
      rank: 1,
      worldSize: 2,
      port,
      secret: SECRET,
      route: () => via,
    });
    const first = await joined;
    expect(numCut).toBe(2);
    await Promise.all([first.barrier(), second.barrier()]);
    await Promise.all([first.close(), second.close()]);
    gate.close();
  });

  it("says so where the heartbeat worker can't be started from its file", async () => {
    const heartbeatWorker = 'file:///nowhere/heartbeat-worker.js';
    const { port, joined } = await beginFirst({ heartbeatWorker });
    const second = connectWs({ rank: 1, worldSize: 2, port, secret: SECRET, heartbeatWorker });
    await expect(second).rejects.toThrow(/heartbeat worker has ended: .*nowhere/);
    await expect(joined).rejects.toMatchObject({ code: 'JOIN' });
  });

  it('gives up on a rank 0 that never comes', async () => {
    const gone = connectWs({ rank: 1, worldSize: 2, port: 1, secret: SECRET, joinTimeoutMs: 200 });
    await expect(gone).rejects.toThrow(/no rendezvous of the job|not complete within 200/);
  });

  it("refuses options that can't be right", async () => {
    const good = { rank: 1, worldSize: 2, port: 5000, secret: SECRET };
    await expect(connectWs({ ...good, rank: 2 })).rejects.toThrow(/rank below/);
    await expect(connectWs({ ...good, port: 0 })).rejects.toThrow(/the rendezvous. port/);
    await expect(connectWs({ ...good, secret: 'short' })).rejects.toThrow(/at least 16/);
  });
});
