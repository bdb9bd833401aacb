// What a run has left goes to a repository of the Hub, which a server plays here: whole, in one
// commit, with a card, and without anything of the machine that trained it.

import { createHash } from 'node:crypto';
import {
  cpSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { Decoder, type HostTensor, stateDict, writeSafetensors } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { parse } from 'yaml';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { SignalError } from '../src/errors.js';
import { hubModel } from '../src/hub/hub-model.ts';
import { parseHubName } from '../src/hub/hub-name.ts';
import { HubPush } from '../src/hub/hub-push.ts';
import { hubSettings } from '../src/hub/hub-settings.ts';
import { Interrupt } from '../src/interrupt.js';
import { PlayedHub } from './support/hub-server.ts';
import { PlayedUploads } from './support/hub-uploads.ts';
import { runCli } from './support/run-cli.js';
import { ROOT } from './support/run-flags.js';

const BASE = 'ocean/whale';
const CONFIG = {
  model_type: 'llama',
  vocab_size: 512,
  hidden_size: 32,
  intermediate_size: 64,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  max_position_embeddings: 64,
  tie_word_embeddings: true,
} as const;
/** A name that is in all paths of the run, and nowhere else. */
const USER = 'quohog-fisher';
const home = join(newFolder(), USER);
const tuned = join(home, 'runs/tuned');
const whole = join(home, 'runs/whole');
const data = join(home, 'chats.jsonl');
const LICENSE = { license: 'other', license_name: 'whalers' };
const files = (directory: string) =>
  new Map(readdirSync(directory).map((name) => [name, readFileSync(join(directory, name))]));

let state: ReadonlyMap<string, HostTensor>;
let hub: PlayedHub;
let uploads: PlayedUploads;
let base: string;

async function openHub(): Promise<void> {
  hub = await PlayedHub.open();
  uploads = await PlayedUploads.open(hub);
  uploads.accounts.set('secret', { name: 'ann', orgs: ['ocean'] });
  const tokenizer = (name: string) => readFileSync(`${ROOT}tooling/tokenizer/${name}`);
  base = hub.push(BASE, {
    files: {
      'config.json': JSON.stringify(CONFIG),
      'model.safetensors': writeSafetensors(state),
      'tokenizer.json': tokenizer('tokenizer.json'),
      'tokenizer_config.json': tokenizer('tokenizer_config.json'),
    },
    info: { cardData: LICENSE },
  });
}
async function closeHub(): Promise<void> {
  await uploads[Symbol.asyncDispose]();
  await hub[Symbol.asyncDispose]();
}

const run = (line: string, options: Parameters<typeof runCli>[1] = {}) =>
  runCli(line.split(' '), {
    ...options,
    env: {
      ...{ HF_ENDPOINT: hub.endpoint, HF_HOME: join(home, 'hf'), HF_HUB_OFFLINE: '' },
      ...{ HF_TOKEN: 'secret', ...options.env },
    },
  });
const push = (flags: string, options: Parameters<typeof runCli>[1] = {}) =>
  run(`push --from ${tuned} --to ann/whale-lora ${flags}`.trimEnd(), options);
const pushed = (repo: string) => hub.newest(repo).model!.files;

beforeAll(async () => {
  vi.stubEnv('HOME', home);
  mkdirSync(home, { recursive: true });
  writeFileSync(data, '{"prompt": "Who?", "completion": "Ahab, whose leg is ivory."}\n'.repeat(9));
  const backend = await createCpuBackend({ threads: 1 });
  const device = new Device(backend);
  state = await stateDict(new Decoder(device, CONFIG));
  device.dispose();
  await backend.dispose();
  await openHub();
  const small = `--data ${data} --device cpu --threads 1 --strategy single --seq 16 --batch 2 --quiet --cache ${home}/cache`;
  const lora = await run(
    `train --model ${BASE} ${small} --lora-rank 2 --steps 3 --valid-fraction 0.3 --eval-every 2 --out ${tuned}`,
  );
  expect([lora.code, lora.err]).toEqual([0, '']);
  mkdirSync(join(home, 'small'));
  const snapshot = join(home, 'hf/hub/models--ocean--whale/snapshots', base);
  cpSync(snapshot, join(home, 'small'), { recursive: true, dereference: true });
  const all = await run(`train --model ${home}/small ${small} --steps 2 --out ${whole}`);
  expect([all.code, all.err]).toEqual([0, '']);
  await run(`gguf --model ${BASE} --adapter ${tuned} --out ${tuned}/mine.gguf`);
  await closeHub();
});
afterAll(() => {
  vi.unstubAllEnvs();
  rmSync(home, { recursive: true });
});
beforeEach(openHub);
afterEach(closeHub);

describe('a push', () => {
  it('brings adapters whole, in one commit, and ends with the address', async () => {
    const { code, out, err } = await push('--yes');
    expect([code, err]).toEqual([0, '']);
    expect(out.trimEnd().split('\n').at(-1)).toBe(
      `${hub.endpoint}/ann/whale-lora (public, everybody can read it)`,
    );
    const found = pushed('ann/whale-lora');
    expect(Object.keys(found).sort()).toEqual(
      [
        ...['.gitattributes', 'README.md', 'adapter_config.json', 'adapter_model.safetensors'],
        ...['config.yaml', 'loss.svg', 'mine.Modelfile', 'mine.gguf'],
      ].sort(),
    );
    for (const [name, bytes] of files(join(tuned, 'adapter'))) {
      expect(Buffer.from(found[name]!).equals(bytes), name).toBe(true);
    }
    const gguf = readFileSync(join(tuned, 'mine.gguf'));
    expect(Buffer.from(found['mine.gguf']!).equals(gguf)).toBe(true);
    expect(uploads.commits).toHaveLength(1);
    expect(hub.requests.filter((line) => / storage ./.test(line))).toEqual([]);
  });

  it('has a card of what the run was', async () => {
    await push('--yes');
    const card = String(pushed('ann/whale-lora')['README.md']);
    const [, front, text] = card.split('---\n');
    expect(parse(front!)).toEqual({
      ...LICENSE,
      ...{ base_model: BASE, base_model_relation: 'adapter', library_name: 'peft' },
      ...{ pipeline_tag: 'text-generation', tags: ['shardweave', 'lora', 'gguf'] },
    });
    const lines = readFileSync(join(tuned, 'metrics.jsonl'), 'utf8').trimEnd().split('\n');
    const [first, , last] = lines.map((line) => JSON.parse(line) as Record<string, number>);
    expect(text).toContain(
      `Trained: ${first!.loss!.toFixed(4)} in step 1, ${last!.loss!.toFixed(4)} in step 3.`,
    );
    expect(text).toContain(`${last!.validLoss!.toFixed(4)} after step 3`);
    expect(text).toContain(`| commit of the base | \`${base}\` |`);
    const sum = createHash('sha256').update(readFileSync(data)).digest('hex');
    expect(text).toMatch(/\| data \| `chats\.jsonl`: \d+ tokens in 6 documents, .*sha256 `/);
    expect(text).toContain(sum);
    expect(text).toContain('npx shardweave train --config config.yaml --out run\n');
    expect(text).toContain(`generate --model ${BASE} --adapter ann/whale-lora --prompt`);
    expect(text).toContain('| rank 2, alpha 4 on all linear layers |');
    expect(text).not.toContain('Ahab');
    const config = parse(String(pushed('ann/whale-lora')['config.yaml']));
    expect(config).toMatchObject({ model: `${BASE}@${base}`, data: 'chats.jsonl', steps: 3 });
  });

  it('names no base where weights were random', async () => {
    const preset = join(home, 'runs/preset');
    cpSync(whole, preset, { recursive: true });
    const config = readFileSync(join(preset, 'config.yaml'), 'utf8');
    const other = config.replace(`model: ${home}/small`, 'model: micro');
    writeFileSync(join(preset, 'config.yaml'), other);
    await run(`push --from ${preset} --to ann/micro --yes`);
    const card = String(pushed('ann/micro')['README.md']);
    expect(card).toContain('A model of the shape `micro`, trained from random weights with');
    expect(card).not.toMatch(/base_model|license|\| base/);
    expect(String(pushed('ann/micro')['config.yaml'])).toContain('model: micro\n');
  });

  it('names data of the Hub, which comes along', async () => {
    const named = join(home, 'runs/named');
    cpSync(tuned, named, { recursive: true });
    const config = readFileSync(join(named, 'config.yaml'), 'utf8');
    const name = `hf:ocean/chats@${base}:default:train`;
    writeFileSync(join(named, 'config.yaml'), config.replace(`data: ${data}`, `data: ${name}`));
    const { out } = await run(`push --from ${named} --to ann/named --yes`);
    expect(out).not.toContain('names in place of paths');
    expect(parse(String(pushed('ann/named')['config.yaml']))).toMatchObject({ data: name });
    const card = String(pushed('ann/named')['README.md']);
    expect(parse(card.split('---\n')[1]!)).toMatchObject({ datasets: ['ocean/chats'] });
    expect(card).toContain(`| data | \`${name}\` |`);
    expect(card).not.toContain('It wants');
  });

  it('names no hash of data that has changed since', async () => {
    const text = readFileSync(data);
    writeFileSync(data, text);
    await push('--yes');
    expect(String(pushed('ann/whale-lora')['README.md'])).not.toContain('sha256');
  });

  it('takes no path of the machine along', async () => {
    const local = join(home, 'runs/local');
    cpSync(tuned, local, { recursive: true });
    const swap = (name: string, from: string, to: string) => {
      const path = join(local, name);
      const text = readFileSync(path, 'utf8');
      expect(text).toContain(from);
      writeFileSync(path, text.replace(from, to));
    };
    const config = 'adapter/adapter_config.json';
    swap(config, `"${BASE}"`, JSON.stringify(`/mnt/${USER}/small`));
    swap(config, '{', `{"runtime_config": ${JSON.stringify(join(home, 'kept'))},`);
    swap('config.yaml', `${BASE}@${base}`, join(home, 'small'));
    expect(await run(`push --from ${local} --to ann/local --yes`)).toMatchObject({ code: 0 });
    const { out } = await push('--yes');
    expect(out).toContain('config.yaml is without cache, out: paths of this machine\n');
    expect(await run(`push --from ${whole} --to ann/whole --yes`)).toMatchObject({ code: 0 });
    for (const repo of ['ann/local', 'ann/whale-lora', 'ann/whole']) {
      for (const [name, bytes] of Object.entries(pushed(repo))) {
        expect(Buffer.from(bytes).includes(USER), `${repo} ${name}`).toBe(false);
      }
    }
    const adapter = JSON.parse(String(pushed('ann/local')['adapter_config.json']));
    expect(adapter).toMatchObject({ base_model_name_or_path: 'small', runtime_config: 'kept' });
    expect(String(pushed('ann/local')['README.md'])).not.toContain('base_model');
    expect(String(pushed('ann/whale-lora')['mine.Modelfile'])).toBe(
      `# FROM names the base: a GGUF of ${BASE}, or a model of ollama.\nFROM ./base.gguf\nADAPTER ./mine.gguf\n`,
    );
    expect(JSON.stringify(uploads.commits)).not.toContain(USER);
  });

  it('brings a model that a command finds again by its name', async () => {
    expect(await run(`push --from ${whole} --to ocean/mine --yes`)).toMatchObject({ err: '' });
    const env = { HF_ENDPOINT: hub.endpoint, HF_HOME: join(home, 'other') };
    const path = await hubModel(parseHubName('ocean/mine')!, { env });
    for (const [name, bytes] of files(path)) {
      expect(bytes.equals(readFileSync(join(whole, 'model', name))), name).toBe(true);
    }
    expect(readdirSync(path)).toEqual(expect.arrayContaining(['model.safetensors', 'config.json']));
    expect(String(pushed('ocean/mine')['README.md'])).toContain('library_name: transformers');
  });

  it('brings adapters that a command finds again by their name', async () => {
    await push('--yes');
    const line = `generate --model ${BASE} --device cpu --max-tokens 5 --temperature 0 --quiet --prompt Who`;
    const own = await run(`${line} --adapter ${tuned}`);
    expect(await run(`${line} --adapter ann/whale-lora`)).toEqual(own);
    expect(own.code).toBe(0);
    expect(await run(`${line} --adapter ${BASE}`)).toMatchObject({
      code: 2,
      err: `error: --adapter: expected adapter_config.json and adapter_model.safetensors in ${BASE}, got no adapter_config.json. Name a repository of adapters; a whole model is a --model.\n`,
    });
  });

  it('replaces what an earlier one brought, and what it has no more goes', async () => {
    hub.push('ann/mine', {
      files: {
        'config.json': '{}',
        'model-00001-of-00002.safetensors': 'old',
        'picture.png': 'kept',
      },
      info: { private: true },
    });
    const { out } = await run(`push --from ${whole} --to ann/mine --yes`);
    expect(out).toContain('removed there: model-00001-of-00002.safetensors\n');
    expect(out).toMatch(/\/ann\/mine \(private\)\n$/);
    const names = Object.keys(pushed('ann/mine'));
    expect(names).toEqual(expect.arrayContaining(['picture.png', 'model.safetensors']));
    expect(names).not.toContain('model-00001-of-00002.safetensors');
    expect(String(pushed('ann/mine')['config.json'])).not.toBe('{}');
    const { bytesStored } = uploads;
    await run(`push --from ${whole} --to ann/mine --yes`);
    expect([uploads.commits.length, uploads.bytesStored]).toEqual([2, bytesStored]);
  });

  it('takes a GGUF of an earlier one away with its Modelfile, and no other, when it is told so', async () => {
    const old = { 'old.gguf': 'GGUF', 'old.Modelfile': 'FROM ./old.gguf', 'theirs.gguf': 'GGUF' };
    hub.push('ann/whale-lora', { files: { ...old, 'mine.gguf': 'GGUF', 'mine.Modelfile': '' } });
    const { out, err } = await push('', { isTTY: true, input: 'y\n' });
    expect(err).toContain(
      'everybody can read what is pushed. It removes there old.gguf, old.Modelfile of an earlier push, which this one has nothing for. Push? [y/N] ',
    );
    expect(out).toContain('removed there: old.gguf, old.Modelfile\n');
    expect(out).toContain('left there: theirs.gguf, which may have been made of other weights\n');
    const names = Object.keys(pushed('ann/whale-lora'));
    expect(names.filter((name) => /\.(gguf|Modelfile)$/.test(name)).sort()).toEqual([
      ...['mine.Modelfile', 'mine.gguf', 'theirs.gguf'],
    ]);
  });

  it('leaves no commit where it is killed, and goes on', async () => {
    const interrupt = new Interrupt({ exit: () => {} });
    let asked = 0;
    uploads.onStore = () => {
      asked += 1;
      if (asked === 6) {
        interrupt.ask(new SignalError('SIGINT'));
      }
      return asked >= 6;
    };
    const { code, err } = await run(`push --from ${whole} --to ann/mine --yes`, { interrupt });
    expect(code).toBe(130);
    expect(err).toMatch(
      /^error: Ctrl-C ended the push: nothing is committed to ann\/mine, where [\d.]+ KiB of [\d.]+ KiB had been sent\. The same command sends no large file again that has arrived whole\.\n$/,
    );
    expect(uploads.commits).toEqual([]);
    uploads.onStore = undefined;
    expect(await run(`push --from ${whole} --to ann/mine --yes`)).toMatchObject({ code: 0 });
    expect(uploads.commits).toHaveLength(1);
  });

  it('is ended in a sentence while it reads the run, and asks nothing more', async () => {
    for (const from of [whole, whole]) {
      const interrupt = new Interrupt({ exit: () => {} });
      const onErr = (text: string) =>
        text.includes('reading') && interrupt.ask(new SignalError('SIGINT'));
      const options = { interrupt, onErr, isTTY: true, input: 'y\n' };
      const { code, err } = await run(`push --from ${from} --to ann/mine`, options);
      expect(code).toBe(130);
      expect(err).toMatch(
        /\[2Kerror: Ctrl-C ended the push: nothing is committed to ann\/mine\.\n$/,
      );
      writeFileSync(data, readFileSync(data)); // data that has changed since is not read
    }
  });

  it('does not say that nothing is committed where it was ended as the commit was made', async () => {
    const interrupt = new Interrupt({ exit: () => {} });
    const { alsoAnswers } = hub;
    hub.alsoAnswers = (request, response) => {
      const isCommit = request.url!.includes('/commit/');
      if (isCommit) {
        interrupt.ask(new SignalError('SIGINT'));
      }
      return isCommit || alsoAnswers!(request, response);
    };
    const { code, err } = await push('--yes', { interrupt });
    expect({ code, err }).toEqual({
      code: 130,
      err: `error: Ctrl-C ended the push while its commit was on its way. Look at ${hub.endpoint}/ann/whale-lora whether it is there.\n`,
    });
  });
});

describe('who may read', () => {
  it('is asked on a terminal', async () => {
    const no = await push('', { isTTY: true, input: 'n\n' });
    expect([no.code, hub.newest('ann/whale-lora').count]).toEqual([1, 0]);
    expect(no.err).toMatch(/ann\/whale-lora will be public: .* Push\? \[y\/N\] /);
    expect(no.err).toMatch(/error: Nothing was pushed\. Give --private for .*\n$/);
    const yes = await push('', { isTTY: true, input: 'y\n' });
    expect(yes.code).toBe(0);
    expect(yes.out).toMatch(/\(public, everybody can read it\)\n$/);
    expect(yes.err).toMatch(/0 B of [\d.]+ KiB \| to an/);
    // The commit is still to come when all is sent, so that no bar says that it is done.
    expect(yes.err).toMatch(/ 99%/);
    expect(yes.err).not.toContain('100%');
    const again = await push('', { isTTY: true, input: 'y\n' });
    expect(again.err).toContain('ann/whale-lora is public: ');
  });

  it('must be said where nobody can be asked', async () => {
    const { code, err } = await push('');
    expect([code, hub.newest('ann/whale-lora').count]).toEqual([2, 0]);
    expect(err).toMatch(
      /ann\/whale-lora will be public, and nobody can be asked here\. Give --private for a new one of your own, or --yes\.\n$/,
    );
  });

  it('are few of a private one, which stays so', async () => {
    const { out } = await push('--private');
    expect(out).toMatch(/\/ann\/whale-lora \(private\)\n$/);
    expect(hub.newest('ann/whale-lora').model!.info).toEqual({ private: true });
    const again = await push('');
    expect([again.code, again.err]).toEqual([0, '']);
    expect(again.out).toMatch(/\(private\)\n$/);
  });
});

describe('a refusal', () => {
  it.each<readonly [string, () => ReturnType<typeof push>, RegExp]>([
    [
      'no token',
      () => push('--yes', { env: { HF_TOKEN: '' } }),
      /needs a token that may write\. Make one on http.*\/settings\/tokens and set HF_TOKEN/,
    ],
    [
      'a token that nobody has',
      () => push('--yes', { env: { HF_TOKEN: 'old' } }),
      /doesn't know the token of HF_TOKEN, or else of hf auth login \(401\)\. Make one/,
    ],
    [
      'a token that may only read',
      () => {
        uploads.accounts.set('secret', { name: 'ann', role: 'read' });
        return push('--yes');
      },
      /the token in HF_TOKEN may only read\. Make one that may write/,
    ],
    [
      "a name that is somebody else's",
      () => run(`push --from ${tuned} --to bob/whale --yes`),
      /may not write to bob\/whale \(403: You don't have the rights.* that of ann, who is in ocean: /,
    ],
    [
      'HF_HUB_OFFLINE',
      () => push('--yes', { env: { HF_HUB_OFFLINE: '1' } }),
      /HF_HUB_OFFLINE forbids to ask the Hub/,
    ],
    ['a path', () => run(`push --from ${tuned} --to ./x --yes`), /such as me\/whale, got \.\/x/],
    [
      'a repository with a model',
      () => {
        hub.push('ann/whale-lora', { files: { 'config.json': '{}' } });
        return push('--yes');
      },
      /ann\/whale-lora holds a model \(config\.json\), and .* has left adapters\. Give another/,
    ],
    [
      'a public one for --private',
      () => {
        hub.push('ann/whale-lora', { files: {}, info: { private: false } });
        return push('--private');
      },
      /--private: ann\/whale-lora is there already, and public\. Make it private on http/,
    ],
    [
      'a GGUF that is none',
      () => push(`--yes --gguf ${data}`),
      /--gguf: expected a file that the command gguf has written, got .*chats\.jsonl/,
    ],
    [
      'no run',
      () => run(`push --from ${home} --to ann/x --yes`),
      /--from: expected a run, the --out of train with its config\.yaml, got/,
    ],
  ])('says of %s what to do, and nothing is pushed', async (_, refused, message) => {
    const found = await refused();
    expect([found.code, found.out, uploads.commits]).toEqual([2, '', []]);
    expect(found.err).toMatch(message);
    expect(found.err).toMatch(/^error: .+\n$/);
    expect(found.err).not.toContain('secret');
  });

  it('is none where a Hub does not answer', async () => {
    const gone = await PlayedHub.open();
    const { endpoint } = gone;
    await gone[Symbol.asyncDispose]();
    const { code, err } = await push('--yes', { env: { HF_ENDPOINT: endpoint } });
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
      [whole, 'model/model.safetensors'],
      [tuned, 'adapter/adapter_model.safetensors'],
    ];
    for (const [from, weights] of left) {
      const harmed = join(newFolder(), 'run');
      cpSync(from, harmed, { recursive: true });
      harm(join(harmed, weights));
      const { code, err } = await run(`push --from ${harmed} --to ann/harmed --yes`);
      expect(code).toBe(2);
      expect(err).toMatch(/^error: --from: what .* has left can't be pushed\. /);
      expect(err).toMatch(says);
    }
    expect(uploads.commits).toEqual([]);
  });

  it('names convert where a run did not come to its end', async () => {
    const half = join(home, 'runs/half');
    cpSync(whole, half, { recursive: true });
    rmSync(join(half, 'summary.json'));
    rmSync(join(half, 'model'), { recursive: true });
    const { code, err } = await run(`push --from ${half} --to ann/x --yes`);
    expect(code).toBe(2);
    expect(err).toContain(
      `has no model/ yet, for it did not come to its end. Go on with it by train --resume auto, or make one of its newest save: shardweave convert --from ${half} --out ${half}/model.`,
    );
    cpSync(join(whole, 'model'), join(half, 'model'), { recursive: true });
    await run(`push --from ${half} --to ann/x --yes`);
    expect(String(pushed('ann/x')['README.md'])).toContain('the weights of one of its saves');
  });
});

describe('the upload', () => {
  const open = (sent: number[] = []) => {
    const env = { HF_ENDPOINT: hub.endpoint, HF_TOKEN: 'secret' };
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
    uploads.onStore = () => left-- > 0;
    sent.length = 0;
    await files.commit([large], commit);
    expect(Buffer.from(pushed('ann/files')['a.bin']!).toString()).toBe('x'.repeat(9000));
    expect(Math.min(...sent)).toBeLessThan(0);
    const total = sent.reduce((sum, bytes) => sum + bytes, 0);
    expect(total).toBeGreaterThanOrEqual(9000);
    expect(total).toBeLessThan(9000 + 2000); // the requests themselves
  });

  it('goes over nothing that has been pushed meanwhile', async () => {
    const files = open();
    const parent = hub.push('ann/files', { files: {} });
    hub.push('ann/files', { files: { 'a.bin': 'theirs' } });
    await expect(files.commit([large], { ...commit, parent })).rejects.toThrow(
      /something else has been pushed to ann\/files meanwhile \(412: A commit has happened/,
    );
    expect(pushed('ann/files')['a.bin']).toBe('theirs');
  });

  it('asks for a commit once, whose answer may be lost', async () => {
    const files = open();
    await files.create({ isPrivate: true });
    const small = { path: 'a.txt', content: new Blob(['x']), byteLength: 1 };
    const { alsoAnswers } = hub;
    hub.alsoAnswers = (request, response) => {
      const isCommit = request.url!.includes('/commit/');
      if (isCommit) {
        response.writeHead(503).end();
      }
      return isCommit || alsoAnswers!(request, response);
    };
    await expect(files.commit([small], commit)).rejects.toThrow(
      /answers 503\. .*Run the command again/,
    );
    expect(hub.requests.filter((line) => line.includes('/commit/'))).toHaveLength(1);
  });
});
