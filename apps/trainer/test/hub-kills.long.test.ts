// Downloads from the Hub, which a server plays, by processes that are killed.

import { spawn } from 'node:child_process';
import { createHash, randomBytes, randomInt } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { hubModel } from '../src/hub/hub-model.ts';
import { buildScript } from './support/build-command.ts';
import { PACED_BYTES, PlayedHub } from './support/hub-server.ts';

const REPO = 'ocean/whale';

let hub: PlayedHub;
let folder: string;
beforeEach(async () => {
  hub = await PlayedHub.open();
  folder = mkdtempSync(join(tmpdir(), 'hub-kills-'));
});
afterEach(async () => {
  await hub[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true });
});

it('goes on after processes that were killed at 20 random bytes', async () => {
  const whole = randomBytes(60 * PACED_BYTES + 4711);
  const commit = hub.push(REPO, { files: { 'config.json': '{}', 'model.safetensors': whole } });
  const script = await buildScript('test/support/download-model.ts', folder);
  const env = { ...process.env, HF_ENDPOINT: hub.endpoint, HF_HOME: folder };
  const blobs = join(folder, 'hub', 'models--ocean--whale', 'blobs');
  const part = join(blobs, `${createHash('sha256').update(whole).digest('hex')}.incomplete`);
  const sizeOf = () => statSync(part, { throwIfNoEntry: false })?.size ?? 0;
  for (let kill = 0; kill < 20; kill++) {
    const begin = sizeOf();
    const pieces = randomInt(3);
    const child = spawn(process.execPath, [script, REPO], { env, stdio: 'inherit' });
    const gone = once(child, 'exit');
    // Each piece is sent once the one before is on the disk, so that the last alone can be lost.
    hub.pace = async (sent) => {
      if (sent > pieces * PACED_BYTES) {
        return !child.kill('SIGKILL');
      }
      while (sizeOf() < begin + sent && child.exitCode === null && child.signalCode === null) {
        await wait(1);
      }
      return true;
    };
    expect(await gone).toEqual([null, 'SIGKILL']);
  }
  hub.pace = undefined;
  const name = { repo: REPO, revision: commit };
  const path = await hubModel(name, { env });
  expect(readFileSync(join(path, 'model.safetensors')).equals(whole)).toBe(true);
  expect(hub.bytesSent).toBeLessThanOrEqual(whole.byteLength + 20 * PACED_BYTES + 2);
});
