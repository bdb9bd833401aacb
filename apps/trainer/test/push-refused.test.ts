// What a push refuses, and what becomes of an upload that meets trouble on its way.

import { cpSync, rmSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { HubPush } from '../src/hub/hub-push.ts';
import { hubSettings } from '../src/hub/hub-settings.ts';
import { PlayedHub } from './support/hub-server.ts';
import { usePushes } from './support/push-runs.ts';

const at = usePushes();

describe('a refusal', () => {
  it.each<readonly [string, () => ReturnType<typeof at.push>, RegExp]>([
    [
      'no token',
      () => at.push('--yes', { env: { HF_TOKEN: '' } }),
      /needs a token that may write\. Make one on http.*\/settings\/tokens and set HF_TOKEN/,
    ],
    [
      'a token that nobody has',
      () => at.push('--yes', { env: { HF_TOKEN: 'old' } }),
      /doesn't know the token of HF_TOKEN, or else of hf auth login \(401\)\. Make one/,
    ],
    [
      'a token that may only read',
      () => {
        at.uploads.accounts.set('secret', { name: 'ann', role: 'read' });
        return at.push('--yes');
      },
      /the token in HF_TOKEN may only read\. Make one that may write/,
    ],
    [
      "a name that is somebody else's",
      () => at.run(`push --from ${at.tuned} --to bob/whale --yes`),
      /may not write to bob\/whale \(403: You don't have the rights.* that of ann, who is in ocean: /,
    ],
    [
      'HF_HUB_OFFLINE',
      () => at.push('--yes', { env: { HF_HUB_OFFLINE: '1' } }),
      /HF_HUB_OFFLINE forbids to ask the Hub/,
    ],
    [
      'a path',
      () => at.run(`push --from ${at.tuned} --to ./x --yes`),
      /such as me\/whale, got \.\/x/,
    ],
    [
      'a repository with a model',
      () => {
        at.hub.push('ann/whale-lora', { files: { 'config.json': '{}' } });
        return at.push('--yes');
      },
      /ann\/whale-lora holds a model \(config\.json\), and .* has left adapters\. Give another/,
    ],
    [
      'a public one for --private',
      () => {
        at.hub.push('ann/whale-lora', { files: {}, info: { private: false } });
        return at.push('--private');
      },
      /--private: ann\/whale-lora is there already, and public\. Make it private on http/,
    ],
    [
      'a GGUF that is none',
      () => at.push(`--yes --gguf ${at.data}`),
      /--gguf: expected a file that the command gguf has written, got .*chats\.jsonl/,
    ],
    [
      'no run',
      () => at.run(`push --from ${at.home} --to ann/x --yes`),
      /--from: expected a run, the --out of train with its config\.yaml, got/,
    ],
  ])('says of %s what to do, and nothing is pushed', async (_, refused, message) => {
    const found = await refused();
    expect([found.code, found.out, at.uploads.commits]).toEqual([2, '', []]);
    expect(found.err).toMatch(message);
    expect(found.err).toMatch(/^error: .+\n$/);
    expect(found.err).not.toContain('secret');
  });

  it('is none where a Hub does not answer', async () => {
    const gone = await PlayedHub.open();
    const { endpoint } = gone;
    await gone[Symbol.asyncDispose]();
    const { code, err } = await at.push('--yes', { env: { HF_ENDPOINT: endpoint } });
    expect({ code, err }).toEqual({
      code: 1,
      err: `error: ${endpoint} can't be reached (ECONNREFUSED).\n`,
    });
  });

  it.each<[string, (path: string) => void, RegExp]>([
    ['cut off', (path) => truncateSync(path, 300), /is the file truncated/i],
    [
      'gone',
      (path) => rmSync(path),
      /expected a directory with config.json and weights|no such file/,
    ],
  ])('brings no weights that are %s', async (_, harm, says) => {
    const left: [string, string][] = [
      [at.whole, 'model/model.safetensors'],
      [at.tuned, 'adapter/adapter_model.safetensors'],
    ];
    for (const [from, weights] of left) {
      const harmed = join(newFolder(), 'run');
      cpSync(from, harmed, { recursive: true });
      harm(join(harmed, weights));
      const { code, err } = await at.run(`push --from ${harmed} --to ann/harmed --yes`);
      expect(code).toBe(2);
      expect(err).toMatch(/^error: --from: what .* has left can't be pushed\. /);
      expect(err).toMatch(says);
    }
    expect(at.uploads.commits).toEqual([]);
  });

  it('names convert where a run did not come to its end', async () => {
    const half = join(at.home, 'runs/half');
    cpSync(at.whole, half, { recursive: true });
    rmSync(join(half, 'summary.json'));
    rmSync(join(half, 'model'), { recursive: true });
    const { code, err } = await at.run(`push --from ${half} --to ann/x --yes`);
    expect(code).toBe(2);
    expect(err).toContain(
      `has no model/ yet, for it did not come to its end. Go on with it by train --resume auto, or make one of its newest save: shardweave convert --from ${half} --out ${half}/model.`,
    );
    cpSync(join(at.whole, 'model'), join(half, 'model'), { recursive: true });
    await at.run(`push --from ${half} --to ann/x --yes`);
    expect(String(at.pushed('ann/x')['README.md'])).toContain('the weights of one of its saves');
  });
});

describe('the upload', () => {
  const open = (sent: number[] = []) => {
    const env = { HF_ENDPOINT: at.hub.endpoint, HF_TOKEN: 'secret' };
    const onSent = (bytes: number) => sent.push(bytes);
    return new HubPush('ann/files', hubSettings(env), { pauseMs: 5, onSent });
  };
  const large = { path: 'a.bin', content: new Blob(['x'.repeat(9000)]), byteLength: 9000 };
  const commit = { title: 'files', removed: [], parent: undefined };

  it('sends a part again whose connection broke, and counts it once', async () => {
    const sent: number[] = [];
    const files = open(sent);
    await files.create({ isPrivate: true });
    let left = 2;
    at.uploads.onStore = () => left-- > 0;
    sent.length = 0;
    await files.commit([large], commit);
    expect(Buffer.from(at.pushed('ann/files')['a.bin']!).toString()).toBe('x'.repeat(9000));
    expect(Math.min(...sent)).toBeLessThan(0);
    const total = sent.reduce((sum, bytes) => sum + bytes, 0);
    expect(total).toBeGreaterThanOrEqual(9000);
    expect(total).toBeLessThan(9000 + 2000); // the requests themselves
  });

  it('goes over nothing that has been pushed meanwhile', async () => {
    const files = open();
    const parent = at.hub.push('ann/files', { files: {} });
    at.hub.push('ann/files', { files: { 'a.bin': 'theirs' } });
    await expect(files.commit([large], { ...commit, parent })).rejects.toThrow(
      /something else has been pushed to ann\/files meanwhile \(412: A commit has happened/,
    );
    expect(at.pushed('ann/files')['a.bin']).toBe('theirs');
  });

  it('asks for a commit once, whose answer may be lost', async () => {
    const files = open();
    await files.create({ isPrivate: true });
    const small = { path: 'a.txt', content: new Blob(['x']), byteLength: 1 };
    const { alsoAnswers } = at.hub;
    at.hub.alsoAnswers = (request, response) => {
      const isCommit = request.url!.includes('/commit/');
      if (isCommit) {
        response.writeHead(503).end();
      }
      return isCommit || alsoAnswers!(request, response);
    };
    await expect(files.commit([small], commit)).rejects.toThrow(
      /answers 503\. .*Run the command again/,
    );
    expect(at.hub.requests.filter((line) => line.includes('/commit/'))).toHaveLength(1);
  });
});
