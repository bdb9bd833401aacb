// What the test page offers to the test that drives it: `window.shardweavePage`.
import { runConformance } from './conformance.ts';
import { keepTiles } from './tiles.ts';
import { trainFewSteps } from './train.ts';

declare global {
  interface Window {
    shardweavePage: typeof shardweavePage;
  }
}

const shardweavePage = { keepTiles, runConformance, trainFewSteps };
window.shardweavePage = shardweavePage;
