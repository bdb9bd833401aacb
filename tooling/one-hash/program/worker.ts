// The page's worker, which answers one order.
import { type Order, runOrder } from './run-order.ts';

self.onmessage = ({ data }: MessageEvent<Order>) =>
  runOrder(data).then(
    (outcomes) => self.postMessage({ outcomes }),
    (error: Error) => self.postMessage({ error: error.stack ?? String(error) }),
  );
