// The examples of --help run one after the other as a user would type them, with small models and
// few steps, except where they plan GPT-2.

import { cpSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { COMMANDS } from '../src/commands/command-table.js';
import { buildCommand } from './support/build-command.js';
import { classifierFiles, embedderFiles, writeFiles } from './support/encoder-files.js';
import { PlayedHub } from './support/hub-server.ts';
import { PlayedUploads } from './support/hub-uploads.ts';
import { runCli } from './support/run-cli.js';
import { ROOT } from './support/run-flags.js';

const folder = newFolder();
const path = (name: string) => join(folder, name);

const LLAMA = {
  model_type: 'llama',
  vocab_size: 512,
  hidden_size: 32,
  intermediate_size: 64,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  max_position_embeddings: 64,
  tie_word_embeddings: true,
};
const TEMPLATE =
  "{% if tools %}{{ tools[0].function.name + '|' }}{% endif %}{% for m in messages %}" +
  "{{ m.role[0] + (m.content or '') }}{% for c in m.tool_calls or [] %}" +
  "{{ '<tool_call>' + (c.function | tojson) + '</tool_call>' }}{% endfor %}{{ '<|im_end|>' }}" +
  '{% endfor %}{% if add_generation_prompt %}a{% endif %}';
const SMALL = '--steps 2 --batch 4 --seq 16 --device cpu --threads 1';
/** Flags that make a command's example small. A later flag overrides an earlier one. */
const MORE: Readonly<Record<string, string>> = {
  train: `${SMALL} --transport memory --quiet`,
  generate: '--max-tokens 4 --device cpu --threads 1',
  eval: '--device cpu --threads 1',
  embed: '--device cpu --threads 1 --quiet',
};

/** Returns the words of an example, with its paths moved to the folder of this test. */
function small(line: string): string[] {
  // The run whose saves are looked at takes two steps here.
  const short = line
    .replace('step-000120', 'step-000002')
    .replace('--steps 100..110', '--steps 1..2')
    .replace('--step 371', '--step 2');
  const words = [...short.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, word]) => quoted ?? word!);
  const placed = words.map((word) =>
    word === 'DIR' || /^(runs|models)\/|\.(txt|jsonl?|gguf|html|npy)$/.test(word)
      ? path(word)
      : word,
  );
  const [name] = words;
  const model = name === 'train' && !/--(model|config) /.test(line) ? ['--model', path('DIR')] : [];
  const data = name === 'train' && !/--(data|config) /.test(line) ? ['--data', path('my.txt')] : [];
  // Later examples look at this save.
  const saves = line.includes('--out runs/first') ? ['--save-every', '1'] : [];
  return [
    ...placed,
    ...model,
    ...data,
    ...saves,
    ...(MORE[name!] ?? '').split(' ').filter(Boolean),
    ...(name !== 'eval'
      ? []
      : /--task (tools|exact)/.test(line)
        ? ['--max-tokens', '4']
        : ['--seq', '16']),
  ];
}

it('the examples of --help do what they say', async () => {
  writeFileSync(
    path('my.txt'),
    'Call me Ishmael. Some years ago, never mind how long. '.repeat(40),
  );
  const chat = [
    { role: 'user', content: 'Who?' },
    { role: 'assistant', content: 'Ahab' },
  ];
  writeFileSync(path('chats.jsonl'), `${JSON.stringify({ messages: chat })}\n`.repeat(3));
  const call = { role: 'assistant', tool_calls: [{ function: { name: 'hunt', arguments: {} } }] };
  const tools = [{ type: 'function', function: { name: 'hunt' } }];
  writeFileSync(path('calls.jsonl'), JSON.stringify({ tools, messages: [chat[0], call] }));
  writeFileSync(path('tools.json'), JSON.stringify(tools));
  const pair = { query: 'Who?', positive: 'Ahab' };
  writeFileSync(path('pairs.jsonl'), `${JSON.stringify(pair)}\n`);
  writeFiles(path('models/embedder'), embedderFiles());
  writeFiles(path('models/classifier'), classifierFiles(['calm', 'storm']));
  mkdirSync(path('blank'));
  writeFileSync(path('blank/config.json'), JSON.stringify(LLAMA));
  for (const name of ['tokenizer.json', 'tokenizer_config.json']) {
    cpSync(`${ROOT}tooling/tokenizer/${name}`, path(`blank/${name}`));
  }
  const first = `train --model ${path('blank')} --data ${path('my.txt')} --strategy single --out ${path('made')}`;
  expect(await runCli([...first.split(' '), ...MORE.train!.split(' ')])).toMatchObject({ err: '' });
  cpSync(path('made/model'), path('DIR'), { recursive: true });
  writeFileSync(path('DIR/chat_template.jinja'), TEMPLATE);
  const base = ['gguf', '--model', path('DIR'), '--out', path('base.gguf'), '--quiet'];
  expect(await runCli(base)).toMatchObject({ code: 0, err: '' });

  const entry = await buildCommand();
  await using hub = await PlayedHub.open();
  await using uploads = await PlayedUploads.open(hub);
  uploads.accounts.set('secret', { name: 'me' });
  const env = { HF_ENDPOINT: hub.endpoint, HF_TOKEN: 'secret', HF_HUB_OFFLINE: '' };
  let numRun = 0;
  // A dashboard serves until somebody ends it, and a rank joins what another command leads:
  // dashboard-dir.test.ts and elastic-run.test.ts start them.
  const others = ['plan', 'dashboard', 'join'];
  const ending = COMMANDS.filter(({ name }) => !others.includes(name));
  for (const { name, load } of ending) {
    for (const { line } of (await load()).examples) {
      const { code, out, err } = await runCli(small(line), { input: 'Hi\n', entry, env });
      const end = name === 'bisect' ? 1 : 0; // its two runs part
      expect({ code, err }, line).toEqual({ code: end, err: '' });
      const isSilent =
        name === 'train' || line.includes('--quiet') || /^embed .* --out /.test(line);
      expect(out !== '' || isSilent, line).toBe(true);
      numRun += 1;
    }
  }
  expect(numRun).toBeGreaterThan(18);
});
