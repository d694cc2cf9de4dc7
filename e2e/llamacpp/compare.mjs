// Compares what Strobe and llama.cpp make of the same files: tokens of texts, and the probabilities of every next token
// after the same ids. "run" beside this file makes the files.
import {execFileSync} from "node:child_process";
import {mkdtempSync, readFileSync, rmSync, writeFileSync} from "node:fs";
import {tmpdir} from "node:os";
import {basename, join} from "node:path";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const [strobe, ...files] = process.argv.slice(2);
const dir = mkdtempSync(join(tmpdir(), "llamacpp-"));
const length = 48; // ids of one comparison

const texts = [
	"Hello, world!", " leading", "trailing ", "two  spaces", "tab\there", "line\nfeed\n\n\nhere", "1234567 3.14", "naïve Straße",
	"日本語と中文", "🙂🚀", "func main() {\n\tfmt.Println(\"hi\")\n}\n", "<s>a token?</s> x", "x<|im_start|>y", "[INST] a[/INST]b", "   ", "it's I'LL we've",
];

// run calls strobe and returns what it printed.
function run(args, input = "") {
	return execFileSync(strobe, args, {input, encoding: "utf8", maxBuffer: 1 << 28, stdio: ["pipe", "pipe", "pipe"]});
}

// logProbabilities reads the rows of logits that strobe wrote and makes them logarithms of probabilities.
function logProbabilities(path) {
	const b = readFileSync(path);
	const head = Number(b.readBigUInt64LE(0));
	const {logits} = JSON.parse(b.subarray(8, 8 + head).toString());
	const [rows, width] = logits.shape;
	const from = 8 + head + logits.data_offsets[0];
	return Array.from({length: rows}, (_, r) => {
		const row = new Float64Array(width);
		let most = -Infinity, sum = 0;
		for (let i = 0; i < width; i++) {
			row[i] = b.readFloatLE(from + 4 * (r * width + i));
			most = Math.max(most, row[i]);
		}
		for (const x of row) sum += Math.exp(x - most);
		return row.map(x => x - most - Math.log(sum));
	});
}

async function compare(llama, path) {
	const model = await llama.loadModel({modelPath: path});
	const result = {file: basename(path), arch: model.fileInfo.metadata.general.architecture};
	result.tokens = 0;
	for (const special of [false, true]) {
		const flags = special ? ["--no-bos"] : ["--no-bos", "--no-special"];
		const ours = JSON.parse(run(["tokenize", "-m", path, "--batch", ...flags], JSON.stringify(texts)));
		texts.forEach((s, i) => {
			const theirs = [...model.tokenize(s, special)];
			if (JSON.stringify(ours[i]) === JSON.stringify(theirs)) result.tokens++;
			else console.log(`  ${JSON.stringify(s)}, special ${special}: strobe ${ours[i]}, llama.cpp ${theirs}`);
		});
	}
	if (result.arch === "dflash" || result.arch === "eagle3" || result.arch.endsWith("-assistant")) { // drafts alone say nothing
		await model.dispose();
		return result;
	}
	const size = model.fileInfo.metadata.tokenizer.ggml.tokens.length;
	const ids = Array.from({length}, (_, i) => (i * 7919 + 300) % Math.min(size, 1500)); // some ids, the same every time
	writeFileSync(join(dir, "ids.json"), JSON.stringify(ids));
	run(["logits", "-q", "-m", path, "-d", "none", "--device", "cpu", "--tokens", join(dir, "ids.json"),
		"--out", join(dir, "out")]);
	const rows = logProbabilities(join(dir, "out"));
	const context = await model.createContext({contextSize: 256, batchSize: 64});
	const out = await context.getSequence().controlledEvaluate(ids.map(id => [id, {generateNext: {probabilities: true}}]));
	let same = 0;
	const divergence = rows.map((row, r) => {
		const p = out[r].next.probabilities;
		let best = 0, kl = 0;
		row.forEach((x, id) => best = x > row[best] ? id : best);
		for (const [id, x] of p) kl += x > 0 ? x * (Math.log(x) - row[id]) : 0;
		same += p.keys().next().value === best ? 1 : 0; // the most probable comes first
		return kl;
	}).sort((a, b) => a - b);
	await context.dispose();
	await model.dispose();
	return {...result, same, median: divergence[length / 2], worst: divergence[length - 1]};
}

let failed = 0;
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error});
console.log("llama.cpp", llama.llamaCppRelease.release);
for (const path of files) {
	try {
		const r = await compare(llama, path);
		console.log(`${r.file} (${r.arch}): loads, tokens ${r.tokens}/${2 * texts.length}` + (r.median === undefined ? "" :
			`, best token ${r.same}/${length}, divergence ${r.median.toExponential(1)} in the middle, ` +
			`${r.worst.toExponential(1)} at worst`));
		// One place may be far off where rounding decides which of two experts runs, so the middle decides. The limit
		// leaves room for llama.cpp's rounding of activations beside quantised weights; a mistake is near 1.
		failed += r.median > 0.05 || r.tokens < 2 * texts.length ? 1 : 0;
	} catch (err) {
		console.log(`${basename(path)}: ${String(err.stderr || err).trim().split("\n")[0]}`);
		failed++;
	}
}
rmSync(dir, {recursive: true});
process.exit(failed ? 1 : 0);
