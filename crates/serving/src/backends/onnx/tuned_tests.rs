//! A model that is tuned, and served by what was found, on the real unit.

use std::{cell::Cell, fs, path::PathBuf};

use halimede_compute::{
    Precision, Session,
    fingerprint::of_graph,
    packed::Store,
    tuning::{Config, Found},
};
use halimede_compute_cpu::{CpuOptions, CpuUnit, rates};
use halimede_graph::{
    onnx::import,
    passes::{PassOptions, optimize},
};
use halimede_tensor::{DType, Value};

use super::{super::recipe::Compiled, super::verdicts::Verdicts, *};
use crate::testing::Files;

/// A served model with everything around it.
struct Lab {
    /// Of verdicts and packed weights.
    files: Files,
    served: Option<Arc<Served>>,
    model: TunedModel,
}

/// What is remembered: every operator with what counts from then on.
type Remembered = Arc<Mutex<Vec<(String, Option<Config>)>>>;

impl Lab {
    fn new(precision: Precision, remembered: &Remembered) -> Lab {
        let files = Files::new();
        let path =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/repository/digits_classifier/1/model.onnx");
        let import::Model { mut graph, files: weights, .. } = import::load(&path).unwrap();
        optimize(&mut graph, &PassOptions::default());
        let recipe = Arc::new(Recipe {
            name: "digits".to_owned(),
            wanted: precision.into(),
            samples: Vec::new(),
            fingerprint: of_graph(&graph),
            files: weights,
            verdicts: Verdicts(Some(files.path().join("precision"))),
            store: Some(Arc::new(Store::new(files.path().join("packed"), 1 << 30))),
        });
        let units = Arc::new(Units::new(Arc::default(), |wish, choices| {
            let threads = wish.threads;
            Ok(Arc::new(CpuUnit::new(&CpuOptions { threads, choices, ..CpuOptions::default() })))
        }));
        let wish = Wish { threads: Some(1), matrix: true };
        let unit = units.get(wish).unwrap();
        let Compiled { model, rest } = recipe.compile(graph, &unit).unwrap();
        let served = Arc::new(Served::new(model));
        let options = recipe.settle(&Arc::downgrade(&served), &unit, rest).unwrap();
        let found = remembered.clone();
        let tuning = Tuning {
            by_default: true,
            budget: Duration::from_secs(1),
            probe: rates::probe,
            remember: Box::new(move |operator, found_now: &Found, _, _| {
                let config = found_now.winner.as_ref().map(|winner| winner.config.clone());
                let counts = config.or(found_now.is_complete.then(Config::default));
                found.lock().push((operator.to_string(), counts.clone()));
                Ok(counts)
            }),
        };
        let activity = Arc::new(Activity::default());
        let worker = Arc::new(Worker::new(activity.clone()));
        let left = Left::all(&tuning);
        let model = TunedModel {
            shared: Arc::new(Shared { tuning, units, activity, worker }),
            recipe,
            served: Arc::downgrade(&served),
            wish,
            unit,
            options,
            configured: vec![digits(1), digits(8)],
            progress: Arc::new(Progress::waiting()),
            left,
        };
        Lab { files, served: Some(served), model }
    }

    /// A session that has run on eight images, and what it said.
    fn answer(&self) -> (Session, Vec<f64>) {
        let mut session = self.served.as_ref().unwrap().model().session();
        session.run(&made_up_inputs(&digits(8)).unwrap()).unwrap();
        let outputs = session.take_outputs().unwrap();
        let Value::Tensor(first) = &outputs[0] else { panic!("no tensor") };
        let numbers = first.to_f64s().unwrap();
        (session, numbers)
    }

    fn kept(&self, folder: &str) -> usize {
        fs::read_dir(self.files.path().join(folder)).map_or(0, Iterator::count)
    }
}

/// Time to measure everything, however slow a test runs.
const ENDLESS: Duration = Duration::from_secs(10_000);

fn digits(batch: usize) -> Descs {
    vec![TensorDesc { dtype: DType::F32, shape: [batch, 1, 8, 8].into_iter().collect() }]
}

/// Time that passes with every look at it, and no other.
struct Stepped(Cell<Duration>);

impl Clock for Stepped {
    fn now(&self) -> Duration {
        self.0.get()
    }

    fn sleep(&self, time: Duration) {
        self.0.set(self.0.get() + time);
    }
}

#[test]
fn every_operator_is_tuned_once() {
    let remembered = Remembered::default();
    let mut lab = Lab::new(Precision::Exact, &remembered);
    lab.model.left = Left { seen: Vec::new(), budget: ENDLESS, patience: ENDLESS };
    lab.model.tune();
    let found = remembered.lock().clone();
    let operators: BTreeSet<&String> = found.iter().map(|(operator, _)| operator).collect();
    assert!(!found.is_empty() && operators.len() == found.len(), "{found:?}");
    let work = lab.model.progress.now();
    assert_eq!((work.tuned, work.waiting), (found.len(), 0));
    assert!(work.time > Duration::ZERO && work.won <= work.tuned);
    assert!(!lab.model.tune(), "no other shapes have come up");
    // Another model with the same operators: those in doubt are measured again.
    lab.model.left = Left { seen: Vec::new(), ..lab.model.left };
    lab.model.tune();
    let in_doubt = found.iter().filter(|(_, config)| config.is_none()).count();
    assert_eq!(remembered.lock().len(), found.len() + in_doubt);
}

#[test]
fn requests_without_end_leave_no_time() {
    let remembered = Remembered::default();
    let mut lab = Lab::new(Precision::Exact, &remembered);
    let activity = lab.model.shared.activity.clone();
    let _request = activity.begin();
    let clock = Stepped(Cell::default());
    let outcome = lab.model.tune_shapes(&[digits(1)], &clock);
    assert_eq!((outcome.tuned, outcome.given_up.as_deref()), (0, Some("requests leave no time for it")));
    assert_eq!(clock.now(), Duration::from_secs(1) * PATIENCE);
    assert!(remembered.lock().is_empty());
    // Nobody tries again.
    assert!(lab.model.left.patience.is_zero() && !lab.model.tune());
}

#[test]
fn a_model_that_is_unloaded_is_not_tuned_to_the_end() {
    let remembered = Remembered::default();
    let mut lab = Lab::new(Precision::Exact, &remembered);
    lab.model.left = Left { seen: Vec::new(), budget: ENDLESS, patience: ENDLESS };
    let served = Mutex::new(lab.served.take());
    // It goes when its first operator was measured.
    let shared = Arc::get_mut(&mut lab.model.shared).unwrap();
    shared.tuning.remember = Box::new(move |_, _, _, _| {
        served.lock().take();
        Ok(None)
    });
    assert!(lab.model.is_alive());
    let outcome = lab.model.tune_shapes(&[digits(1), digits(8)], &Monotonic::new());
    assert_eq!((outcome.tuned, outcome.given_up), (1, None));
    assert!(!lab.model.is_alive());
}

#[test]
fn what_was_won_is_served_examined_and_kept() {
    for precision in [Precision::Exact, Precision::Balanced] {
        let mut lab = Lab::new(precision, &Remembered::default());
        let (session, before) = lab.answer();
        let part = session.parts().into_iter().find(|part| !part.tunable.space.is_empty()).unwrap();
        let config = part.tunable.space.configs().next().unwrap();
        let (verdicts, other) = (lab.kept("precision"), lab.model.unit.clone());
        lab.model.renew();
        assert!(Arc::ptr_eq(&other, &lab.model.unit), "nothing was won");

        lab.model.shared.units.note(part.operator(), config.clone());
        lab.model.renew();
        let (session, after) = lab.answer();
        let chosen: Vec<Config> = session.steps().into_iter().filter_map(|step| step.chosen).collect();
        assert!(chosen.contains(&config), "{precision}: {chosen:?}");
        assert_eq!(before.len(), after.len());
        let largest = before.iter().fold(0.0, |largest: f64, number| largest.max(number.abs()));
        assert!(before.iter().zip(&after).all(|(a, b)| (a - b).abs() <= 1e-4 * largest), "{precision}");
        // Verdicts of other numbers do not count: one of these was found, where there was one of those.
        assert_eq!(lab.kept("precision"), 2 * verdicts, "{precision}");
    }
}
