// The worked stories of docs/fine-tuning.md run as they are written, with fewer steps, and a small
// model in the place of each of the Hub.

import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { makeModel, parseModelConfig, stateDict } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { LETTERS, lettersDirectory } from './support/letters-tokenizer.js';
import { runCli } from './support/run-cli.js';
import { ROOT } from './support/run-flags.js';
import { writeModel } from './support/write-model.js';

const PAGE = readFileSync(join(ROOT, 'docs/fine-tuning.md'), 'utf8');
const TEMPLATE =
  "{% if tools %}{{ 't' + (tools | length | string) + '<end>\n' }}{% endif %}" +
  "{% for m in messages %}{{ m.role[0] + ':' + (m.content or '') }}" +
  "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + (c.function | tojson) + '</tool_call>' }}" +
  "{% endfor %}{{ '<end>\n' }}{% endfor %}{% if add_generation_prompt %}a:{% endif %}";
const SHAPE = {
  ...{ model_type: 'llama', vocab_size: LETTERS.vocabSize, hidden_size: 32, rms_norm_eps: 1e-5 },
  ...{ intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2, hidden_act: 'silu' },
  ...{ num_key_value_heads: 2, max_position_embeddings: 512, tie_word_embeddings: false },
};

/** The first code block of a language below a heading. */
function block(heading: string, language: string): string {
  const after = PAGE.slice(PAGE.indexOf(`\n${heading}\n`));
  const [, code] = new RegExp(`\`\`\`${language}\n([\\s\\S]*?)\`\`\``).exec(after)!;
  return code!;
}

/** What a command line becomes here. */
function smaller(line: string, { folder, model }: { folder: string; model: string }): string[] {
  const words = [...line.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, word]) => quoted ?? word!);
  const placed = words.map((word) =>
    /^(Qwen|google|HuggingFaceTB)\//.test(word)
      ? model
      : /^runs\/|\.(jsonl?|gguf)$/.test(word)
        ? join(folder, word)
        : word,
  );
  const epochs = placed.indexOf('--epochs');
  if (epochs >= 0) {
    placed.splice(epochs, 2, '--steps', '2');
  }
  const place = ['--device', 'cpu', '--threads', '1'];
  const more: Readonly<Record<string, readonly string[]>> = {
    train: [...place, '--quiet'],
    eval: [...place, ...(line.includes('tools') ? ['--max-tokens', '4'] : [])],
    generate: [...place, '--max-tokens', '4', '--quiet'],
  };
  return [...placed, ...(more[placed[0]!] ?? [])];
}

it.each(['## Tool calls', '### From two manners to one', '## SmolLM3 and Gemma 3'])(
  '%s',
  { timeout: 600_000 },
  async (heading) => {
    const folder = newFolder();
    const model = lettersDirectory({ template: TEMPLATE });
    writeFileSync(join(model, 'config.json'), JSON.stringify(SHAPE));
    const device = new Device(createReferenceBackend());
    const config = parseModelConfig(JSON.stringify(SHAPE));
    await writeModel(model, { config, state: await stateDict(makeModel(device, config)) });
    device.dispose();
    writeFileSync(join(folder, 'make.mjs'), block(heading, 'js'));
    execFileSync(process.execPath, ['make.mjs'], { cwd: folder });
    const lines = [
      ...block(heading, 'sh').matchAll(/^npm run (?:-s )?(\S+) -- (.*?)(?: {2,}#.*)?$/gm),
    ];
    expect(lines.length).toBeGreaterThan(4);
    for (const [, name, rest] of lines) {
      const args = smaller(`${name} ${rest}`, { folder, model });
      const { code, err } = await runCli(args, { input: 'Hey.\n' });
      expect({ code, err: code === 0 ? '' : err }, args.join(' ')).toEqual({ code: 0, err: '' });
    }
  },
);
