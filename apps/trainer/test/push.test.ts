// What a run has left goes to a repository of the Hub, which a server plays here: whole, in one
// commit, with a card, and without anything of the machine that trained it.

import { createHash } from 'node:crypto';
import { cpSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { SignalError } from '../src/errors.js';
import { hubModel } from '../src/hub/hub-model.ts';
import { parseHubName } from '../src/hub/hub-name.ts';
import { Interrupt } from '../src/interrupt.js';
import { BASE, LICENSE, USER, usePushes } from './support/push-runs.ts';

const at = usePushes();
const files = (directory: string) =>
  new Map(readdirSync(directory).map((name) => [name, readFileSync(join(directory, name))]));

describe('a push', () => {
  it('brings adapters whole, in one commit, and ends with the address', async () => {
    const { code, out, err } = await at.push('--yes');
    expect([code, err]).toEqual([0, '']);
    expect(out.trimEnd().split('\n').at(-1)).toBe(
      `${at.hub.endpoint}/ann/whale-lora (public, everybody can read it)`,
    );
    const found = at.pushed('ann/whale-lora');
    expect(Object.keys(found).sort()).toEqual(
      [
        ...['.gitattributes', 'README.md', 'adapter_config.json', 'adapter_model.safetensors'],
        ...['config.yaml', 'loss.svg', 'mine.Modelfile', 'mine.gguf'],
      ].sort(),
    );
    for (const [name, bytes] of files(join(at.tuned, 'adapter'))) {
      expect(Buffer.from(found[name]!).equals(bytes), name).toBe(true);
    }
    const gguf = readFileSync(join(at.tuned, 'mine.gguf'));
    expect(Buffer.from(found['mine.gguf']!).equals(gguf)).toBe(true);
    expect(at.uploads.commits).toHaveLength(1);
    expect(at.hub.requests.filter((line) => / storage ./.test(line))).toEqual([]);
  });

  it('has a card of what the run was', async () => {
    await at.push('--yes');
    const card = String(at.pushed('ann/whale-lora')['README.md']);
    const [, front, text] = card.split('---\n');
    expect(parse(front!)).toEqual({
      ...LICENSE,
      ...{ base_model: BASE, base_model_relation: 'adapter', library_name: 'peft' },
      ...{ pipeline_tag: 'text-generation', tags: ['shardweave', 'lora', 'gguf'] },
    });
    const lines = readFileSync(join(at.tuned, 'metrics.jsonl'), 'utf8').trimEnd().split('\n');
    const [first, , last] = lines.map((line) => JSON.parse(line) as Record<string, number>);
    expect(text).toContain(
      `Trained: ${first!.loss!.toFixed(4)} in step 1, ${last!.loss!.toFixed(4)} in step 3.`,
    );
    expect(text).toContain(`${last!.validLoss!.toFixed(4)} after step 3`);
    expect(text).toContain(`| commit of the base | \`${at.base}\` |`);
    const sum = createHash('sha256').update(readFileSync(at.data)).digest('hex');
    expect(text).toMatch(/\| data \| `chats\.jsonl`: \d+ tokens in 6 documents, .*sha256 `/);
    expect(text).toContain(sum);
    expect(text).toContain('npx shardweave train --config config.yaml --out run\n');
    expect(text).toContain(`generate --model ${BASE} --adapter ann/whale-lora --prompt`);
    expect(text).toContain('| rank 2, alpha 4 on all linear layers |');
    expect(text).not.toContain('Ahab');
    const config = parse(String(at.pushed('ann/whale-lora')['config.yaml']));
    expect(config).toMatchObject({ model: `${BASE}@${at.base}`, data: 'chats.jsonl', steps: 3 });
  });

  it('names no base where weights were random', async () => {
    const preset = join(at.home, 'runs/preset');
    cpSync(at.whole, preset, { recursive: true });
    const config = readFileSync(join(preset, 'config.yaml'), 'utf8');
    const other = config.replace(`model: ${at.home}/small`, 'model: micro');
    writeFileSync(join(preset, 'config.yaml'), other);
    await at.run(`push --from ${preset} --to ann/micro --yes`);
    const card = String(at.pushed('ann/micro')['README.md']);
    expect(card).toContain('A model of the shape `micro`, trained from random weights with');
    expect(card).not.toMatch(/base_model|license|\| base/);
    expect(String(at.pushed('ann/micro')['config.yaml'])).toContain('model: micro\n');
  });

  it('names data of the Hub, which comes along', async () => {
    const named = join(at.home, 'runs/named');
    cpSync(at.tuned, named, { recursive: true });
    const config = readFileSync(join(named, 'config.yaml'), 'utf8');
    const name = `hf:ocean/chats@${at.base}:default:train`;
    writeFileSync(join(named, 'config.yaml'), config.replace(`data: ${at.data}`, `data: ${name}`));
    const { out } = await at.run(`push --from ${named} --to ann/named --yes`);
    expect(out).not.toContain('names in place of paths');
    expect(parse(String(at.pushed('ann/named')['config.yaml']))).toMatchObject({ data: name });
    const card = String(at.pushed('ann/named')['README.md']);
    expect(parse(card.split('---\n')[1]!)).toMatchObject({ datasets: ['ocean/chats'] });
    expect(card).toContain(`| data | \`${name}\` |`);
    expect(card).not.toContain('It wants');
  });

  it('names no hash of data that has changed since', async () => {
    const text = readFileSync(at.data);
    writeFileSync(at.data, text);
    await at.push('--yes');
    expect(String(at.pushed('ann/whale-lora')['README.md'])).not.toContain('sha256');
  });

  it('takes no path of the machine along', async () => {
    const local = join(at.home, 'runs/local');
    cpSync(at.tuned, local, { recursive: true });
    const swap = (name: string, from: string, to: string) => {
      const path = join(local, name);
      const text = readFileSync(path, 'utf8');
      expect(text).toContain(from);
      writeFileSync(path, text.replace(from, to));
    };
    const config = 'adapter/adapter_config.json';
    swap(config, `"${BASE}"`, JSON.stringify(`/mnt/${USER}/small`));
    swap(config, '{', `{"runtime_config": ${JSON.stringify(join(at.home, 'kept'))},`);
    swap('config.yaml', `${BASE}@${at.base}`, join(at.home, 'small'));
    expect(await at.run(`push --from ${local} --to ann/local --yes`)).toMatchObject({ code: 0 });
    const { out } = await at.push('--yes');
    expect(out).toContain('config.yaml is without cache, out: paths of this machine\n');
    expect(await at.run(`push --from ${at.whole} --to ann/whole --yes`)).toMatchObject({ code: 0 });
    for (const repo of ['ann/local', 'ann/whale-lora', 'ann/whole']) {
      for (const [name, bytes] of Object.entries(at.pushed(repo))) {
        expect(Buffer.from(bytes).includes(USER), `${repo} ${name}`).toBe(false);
      }
    }
    const adapter = JSON.parse(String(at.pushed('ann/local')['adapter_config.json']));
    expect(adapter).toMatchObject({ base_model_name_or_path: 'small', runtime_config: 'kept' });
    expect(String(at.pushed('ann/local')['README.md'])).not.toContain('base_model');
    expect(String(at.pushed('ann/whale-lora')['mine.Modelfile'])).toBe(
      `# FROM names the base: a GGUF of ${BASE}, or a model of ollama.\nFROM ./base.gguf\nADAPTER ./mine.gguf\n`,
    );
    expect(JSON.stringify(at.uploads.commits)).not.toContain(USER);
  });

  it('brings a model that a command finds again by its name', async () => {
    expect(await at.run(`push --from ${at.whole} --to ocean/mine --yes`)).toMatchObject({
      err: '',
    });
    const env = { HF_ENDPOINT: at.hub.endpoint, HF_HOME: join(at.home, 'other') };
    const path = await hubModel(parseHubName('ocean/mine')!, { env });
    for (const [name, bytes] of files(path)) {
      expect(bytes.equals(readFileSync(join(at.whole, 'model', name))), name).toBe(true);
    }
    expect(readdirSync(path)).toEqual(expect.arrayContaining(['model.safetensors', 'config.json']));
    expect(String(at.pushed('ocean/mine')['README.md'])).toContain('library_name: transformers');
  });

  it('brings adapters that a command finds again by their name', async () => {
    await at.push('--yes');
    const line = `generate --model ${BASE} --device cpu --max-tokens 5 --temperature 0 --quiet --prompt Who`;
    const own = await at.run(`${line} --adapter ${at.tuned}`);
    expect(await at.run(`${line} --adapter ann/whale-lora`)).toEqual(own);
    expect(own.code).toBe(0);
    expect(await at.run(`${line} --adapter ${BASE}`)).toMatchObject({
      code: 2,
      err: `error: --adapter: expected adapter_config.json and adapter_model.safetensors in ${BASE}, got no adapter_config.json. Name a repository of adapters; a whole model is a --model.\n`,
    });
  });

  it('replaces what an earlier one brought, and what it has no more goes', async () => {
    at.hub.push('ann/mine', {
      files: {
        'config.json': '{}',
        'model-00001-of-00002.safetensors': 'old',
        'picture.png': 'kept',
      },
      info: { private: true },
    });
    const { out } = await at.run(`push --from ${at.whole} --to ann/mine --yes`);
    expect(out).toContain('removed there: model-00001-of-00002.safetensors\n');
    expect(out).toMatch(/\/ann\/mine \(private\)\n$/);
    const names = Object.keys(at.pushed('ann/mine'));
    expect(names).toEqual(expect.arrayContaining(['picture.png', 'model.safetensors']));
    expect(names).not.toContain('model-00001-of-00002.safetensors');
    expect(String(at.pushed('ann/mine')['config.json'])).not.toBe('{}');
    const { bytesStored } = at.uploads;
    await at.run(`push --from ${at.whole} --to ann/mine --yes`);
    expect([at.uploads.commits.length, at.uploads.bytesStored]).toEqual([2, bytesStored]);
  });

  it('takes a GGUF of an earlier one away with its Modelfile, and no other, when it is told so', async () => {
    const old = { 'old.gguf': 'GGUF', 'old.Modelfile': 'FROM ./old.gguf', 'theirs.gguf': 'GGUF' };
    at.hub.push('ann/whale-lora', { files: { ...old, 'mine.gguf': 'GGUF', 'mine.Modelfile': '' } });
    const { out, err } = await at.push('', { isTTY: true, input: 'y\n' });
    expect(err).toContain(
      'everybody can read what is pushed. It removes there old.gguf, old.Modelfile of an earlier push, which this one has nothing for. Push? [y/N] ',
    );
    expect(out).toContain('removed there: old.gguf, old.Modelfile\n');
    expect(out).toContain('left there: theirs.gguf, which may have been made of other weights\n');
    const names = Object.keys(at.pushed('ann/whale-lora'));
    expect(names.filter((name) => /\.(gguf|Modelfile)$/.test(name)).sort()).toEqual([
      ...['mine.Modelfile', 'mine.gguf', 'theirs.gguf'],
    ]);
  });

  it('leaves no commit where it is killed, and goes on', async () => {
    const interrupt = new Interrupt({ exit: () => {} });
    let asked = 0;
    at.uploads.onStore = () => {
      asked += 1;
      if (asked === 6) {
        interrupt.ask(new SignalError('SIGINT'));
      }
      return asked >= 6;
    };
    const { code, err } = await at.run(`push --from ${at.whole} --to ann/mine --yes`, {
      interrupt,
    });
    expect(code).toBe(130);
    expect(err).toMatch(
      /^error: Ctrl-C ended the push: nothing is committed to ann\/mine, where [\d.]+ KiB of [\d.]+ KiB had been sent\. The same command sends no large file again that has arrived whole\.\n$/,
    );
    expect(at.uploads.commits).toEqual([]);
    at.uploads.onStore = undefined;
    expect(await at.run(`push --from ${at.whole} --to ann/mine --yes`)).toMatchObject({ code: 0 });
    expect(at.uploads.commits).toHaveLength(1);
  });

  it('is ended in a sentence while it reads the run, and asks nothing more', async () => {
    for (const isChanged of [false, true]) {
      if (isChanged) {
        writeFileSync(at.data, readFileSync(at.data)); // such data is not read
      }
      const interrupt = new Interrupt({ exit: () => {} });
      const onErr = (text: string) =>
        text.includes('reading') && interrupt.ask(new SignalError('SIGINT'));
      const options = { interrupt, onErr, isTTY: true, input: 'y\n' };
      const { code, err } = await at.run(`push --from ${at.whole} --to ann/mine`, options);
      expect(code).toBe(130);
      expect(err).toMatch(
        /\[2Kerror: Ctrl-C ended the push: nothing is committed to ann\/mine\.\n$/,
      );
    }
  });

  it('does not say that nothing is committed where it was ended as the commit was made', async () => {
    const interrupt = new Interrupt({ exit: () => {} });
    const { alsoAnswers } = at.hub;
    at.hub.alsoAnswers = (request, response) => {
      const isCommit = request.url!.includes('/commit/');
      if (isCommit) {
        interrupt.ask(new SignalError('SIGINT'));
      }
      return isCommit || alsoAnswers!(request, response);
    };
    const { code, err } = await at.push('--yes', { interrupt });
    expect({ code, err }).toEqual({
      code: 130,
      err: `error: Ctrl-C ended the push while its commit was on its way. Look at ${at.hub.endpoint}/ann/whale-lora whether it is there.\n`,
    });
  });
});

describe('who may read', () => {
  it('is asked on a terminal', async () => {
    const no = await at.push('', { isTTY: true, input: 'n\n' });
    expect([no.code, at.hub.newest('ann/whale-lora').count]).toEqual([1, 0]);
    expect(no.err).toMatch(/ann\/whale-lora will be public: .* Push\? \[y\/N\] /);
    expect(no.err).toMatch(/error: Nothing was pushed\. Give --private for .*\n$/);
    const closed = await at.push('', { isTTY: true, input: '' });
    expect(closed.err).toMatch(/Push\? \[y\/N\] \nerror: Nothing was pushed\./);
    const yes = await at.push('', { isTTY: true, input: 'y\n' });
    expect(yes.code).toBe(0);
    expect(yes.out).toMatch(/\(public, everybody can read it\)\n$/);
    expect(yes.err).toMatch(/0 B of [\d.]+ KiB \| to an/);
    // The commit is still to come when all is sent, so that no bar says that it is done.
    expect(yes.err).toMatch(/ 99%/);
    expect(yes.err).not.toContain('100%');
    const again = await at.push('', { isTTY: true, input: 'y\n' });
    expect(again.err).toContain('ann/whale-lora is public: ');
  });

  it('must be said where nobody can be asked', async () => {
    const { code, err } = await at.push('');
    expect([code, at.hub.newest('ann/whale-lora').count]).toEqual([2, 0]);
    expect(err).toMatch(
      /ann\/whale-lora will be public, and nobody can be asked here\. Give --private for a new one of your own, or --yes\.\n$/,
    );
  });

  it('are few of a private one, which stays so', async () => {
    const { out } = await at.push('--private');
    expect(out).toMatch(/\/ann\/whale-lora \(private\)\n$/);
    expect(at.hub.newest('ann/whale-lora').model!.info).toEqual({ private: true });
    const again = await at.push('');
    expect([again.code, again.err]).toEqual([0, '']);
    expect(again.out).toMatch(/\(private\)\n$/);
  });
});
