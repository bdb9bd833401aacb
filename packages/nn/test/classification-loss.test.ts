// The losses of classifiers are compared with loops in float64 after PyTorch's definitions, and
// their gradients with central differences.

import { type ClassificationLossOptions, classificationLoss } from '@shardweave/nn/embedding';
import { expect, it } from 'vitest';
import { errorOf } from '../../../tooling/test-kit/index.ts';
import { expectClose, expectGradients, makeDevice, read, values } from './support/support.js';

const [ROWS, LABELS] = [4, 3];
const LOGITS = values(ROWS * LABELS, 7).map((value) => value * 3);
const rowOf = (row: number) => LOGITS.slice(row * LABELS, (row + 1) * LABELS);
const softplus = (x: number) => Math.log1p(Math.exp(x));
const total = (all: readonly number[]) => all.reduce((sum, value) => sum + value, 0);

function choice(labels: readonly number[], weights: readonly number[]): readonly number[] {
  return labels.map((label, row) => {
    const all = rowOf(row);
    const lse = Math.log(total(all.map(Math.exp)));
    return label < 0 ? 0 : weights[label]! * (lse - all[label]!);
  });
}

const IDS = [2, 0, -100, 1];
const CLASS_WEIGHTS = [0.5, 2, 1.25];
const MARKS = [1, 0, 0.25, 0, 1, 1, 0, 0, 1, 0.5, 1, 0];
const POS_WEIGHTS = [1, 3, 0.5];
const WANTED = values(ROWS * LABELS, 8);

type Case = readonly [
  name: string,
  labels: readonly number[],
  options: ClassificationLossOptions,
  expected: number,
];

const CASES: readonly Case[] = [
  [
    'one label a row',
    IDS,
    { problemType: 'single_label_classification' },
    total(choice(IDS, [1, 1, 1])) / 3,
  ],
  [
    'one label a row with class weights',
    IDS,
    { problemType: 'single_label_classification', classWeights: CLASS_WEIGHTS },
    total(choice(IDS, CLASS_WEIGHTS)) / total(CLASS_WEIGHTS),
  ],
  [
    'one label a row over a divisor',
    IDS,
    { problemType: 'single_label_classification', classWeights: CLASS_WEIGHTS, divisor: 8 },
    total(choice(IDS, CLASS_WEIGHTS)) / 8,
  ],
  [
    'several labels at once',
    MARKS,
    { problemType: 'multi_label_classification' },
    total(MARKS.map((y, i) => y * softplus(-LOGITS[i]!) + (1 - y) * softplus(LOGITS[i]!))) / 12,
  ],
  [
    'several labels at once with positive weights',
    MARKS,
    { problemType: 'multi_label_classification', posWeights: POS_WEIGHTS },
    total(
      MARKS.map((y, i) => {
        const weight = POS_WEIGHTS[i % LABELS]!;
        return weight * y * softplus(-LOGITS[i]!) + (1 - y) * softplus(LOGITS[i]!);
      }),
    ) / 12,
  ],
  [
    'regression',
    WANTED,
    { problemType: 'regression' },
    total(WANTED.map((wanted, i) => (LOGITS[i]! - wanted) ** 2)) / 12,
  ],
];

it.each(CASES)('%s has its loss and gradients', async (_, labels, options, expected) => {
  const device = makeDevice();
  const logits = device.tensor(LOGITS, [ROWS, LABELS], { requiresGrad: true });
  const loss = async () => classificationLoss(logits, labels, options);
  expectClose([await (await loss()).item()], [expected], 1e-6);
  await expectGradients([logits], loss);
  device.dispose();
});

it('the loss of logits far from 0, and of 0 itself, is finite and has the right gradient', async () => {
  const device = makeDevice();
  const logits = device.tensor([200, -200, 200, -200, 0, 0], [2, 3], { requiresGrad: true });
  const loss = classificationLoss(logits, [1, 0, 0, 1, 1, 0], {
    problemType: 'multi_label_classification',
  });
  expectClose([await loss.item()], [(400 + 2 * Math.log(2)) / 6], 1e-6);
  await loss.backward();
  expectClose(await read(logits.grad!), [0, 0, 1 / 6, -1 / 6, -1 / 12, 1 / 12], 1e-6);
  device.dispose();
});

it('labels, weights and logits that do not fit are refused', async () => {
  const device = makeDevice();
  const logits = device.tensor(LOGITS, [ROWS, LABELS]);
  const single = { problemType: 'single_label_classification' } as const;
  const multi = { problemType: 'multi_label_classification' } as const;
  const calls = [
    () => classificationLoss(logits, [1, 2], single),
    () => classificationLoss(logits, [1, 2, 3, 0], single),
    () =>
      classificationLoss(
        logits,
        MARKS.map((mark) => mark * 2),
        multi,
      ),
    () => classificationLoss(logits, IDS, { ...single, classWeights: [1, 2] }),
    () => classificationLoss(logits, MARKS, { ...multi, classWeights: [1, 2, 3] }),
    () =>
      classificationLoss(
        logits,
        WANTED.map(() => Number.NaN),
        { problemType: 'regression' },
      ),
  ];
  const found = await Promise.all(calls.map(async (call) => (await errorOf(call))?.message));
  expect(found).toEqual([
    'classificationLoss: expected logits [rows, labels] and a label for each row, got logits [4, 3] and 2 labels.',
    'classificationLoss: expected labels to be ids below 3, got 3 (label 2).',
    'classificationLoss: expected labels to be numbers from 0 to 1, got 2 (label 0).',
    'classificationLoss: expected classWeights to be one for each of 3 labels and beside single_label_classification, got 2 beside single_label_classification.',
    'classificationLoss: expected classWeights to be one for each of 3 labels and beside single_label_classification, got 3 beside multi_label_classification.',
    'classificationLoss: expected labels to be finite numbers, got NaN (label 0).',
  ]);
  device.dispose();
});
