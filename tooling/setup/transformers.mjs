// Step `transformers` provides what judges ONNX files in long tests: transformers.js with its
// onnxruntime from the npm registry, and ONNX's own checker for Python by apt under the rules of
// system-packages.mjs. Together they have half a gigabyte, so they are no part of an install.
// Without them those tests skip and give the reason.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { runNpm } from './install.mjs';
import { STATE } from './root.mjs';
import { SetupError } from './setup-error.mjs';
import { announce, step } from './step.mjs';
import { installPackages } from './system-packages.mjs';

const STEP = 'transformers';
const VERSION = '4.3.1';
const FOLDER = join(STATE, STEP, VERSION);
const PYTHON = '/usr/bin/python3';

/** The folder of the modules of transformers.js; undefined where it is not installed. */
export function findTransformers() {
  const modules = join(FOLDER, 'node_modules');
  return existsSync(join(modules, '@huggingface/transformers')) ? modules : undefined;
}

/** The Python that has ONNX's checker; undefined where there is none. */
export function findOnnxPython() {
  const { status } = spawnSync(PYTHON, ['-c', 'import onnx'], { stdio: 'ignore' });
  return status === 0 ? PYTHON : undefined;
}

/** @returns {Promise<{environment: Record<string, string>}>} variables for the test process */
export async function transformersForTests() {
  const environment = {};
  try {
    await installTransformers();
  } catch (error) {
    if (!(error instanceof SetupError)) {
      throw error;
    }
    announce(STEP, `its tests will skip: ${error.message}`);
    environment.SHARDWEAVE_NO_TRANSFORMERS = error.message;
  }
  if (findOnnxPython() === undefined) {
    const refusal = installPackages({ step: STEP, packages: ['python3-onnx'] });
    if (findOnnxPython() === undefined) {
      const reason = `no ONNX for Python was found, and apt was not used: ${refusal ?? 'it installed none'}`;
      announce(STEP, `the checker's test will skip: ${reason}`);
      environment.SHARDWEAVE_NO_ONNX_CHECKER = reason;
    }
  }
  return { environment };
}

async function installTransformers() {
  await step({
    name: STEP,
    says: `transformers.js ${VERSION}, from the npm registry`,
    key: VERSION,
    isThere: () => findTransformers() !== undefined,
    work: async () => {
      mkdirSync(FOLDER, { recursive: true });
      // Its scripts would download libraries for graphics cards; the tests compute on the CPU.
      const quietly = ['--ignore-scripts', '--no-save', '--no-audit', '--no-fund'];
      const name = `@huggingface/transformers@${VERSION}`;
      await runNpm(STEP, ['install', '--prefix', FOLDER, ...quietly, name]);
    },
  });
}
